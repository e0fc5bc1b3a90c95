import type { About, Attribute, Job, Problem } from './common.js';

export { attribute, dataOf } from './common.js';
export type { About, Attribute, Job, Problem };

/** Made by run, hold, holdUntil, reschedule and drop. */
export interface Decision {
  action: { tag: 'run' | 'hold' | 'reschedule' | 'drop'; val?: number };
  reason?: string;
}

export function run(): Decision;
export function hold(reason?: string): Decision;
export function holdUntil(until: number | Date, reason?: string): Decision;
export function reschedule(at: number | Date, reason?: string): Decision;
export function drop(reason?: string): Decision;

export type Dimension = 'job-type' | 'priority' | { attribute: string };

export interface Group {
  value: string;
  count: number;
  weight: number;
}

export interface RunningJob {
  id: string;
  jobType: string;
  priority: number;
  /** 0 for a critical job, which takes no capacity. */
  weight: number;
  critical: boolean;
  attributes: Attribute[];
  grantedAt: number;
}

/** The running jobs, without the candidates of this call. */
export interface Running {
  count(): number;
  weight(): number;
  groups(by: Dimension): Group[];
  inGroup(by: Dimension, value: string): Group;
  /** The running weight by the values of a dimension. */
  weights(by: Dimension): Map<string, number>;
  /** The earliest granted first; at most 1000. */
  page(offset: number, limit: number): RunningJob[];
}

/** Kept with the call's decisions, if it succeeds. */
export interface State {
  load(key: string): any;
  save(key: string, value: unknown): void;
  delete(key: string): void;
  keys(): string[];
}

export interface Ended {
  id: string;
  jobType: string;
  attributes: Attribute[];
  attempt: number;
  succeeded: boolean;
  reason?: string;
  status?: number;
}

export interface Round {
  queue: string;
  now: number;
  /** The queue's own concurrency, if it has one. */
  concurrency?: number;
  /** Workers can take this many jobs now. */
  room: number;
  ended: Ended[];
  running: Running;
  state: State;
}

/** A list alone means `more: true`. */
export type Answer = Decision[] | { decisions: Decision[]; more?: boolean };

export interface Throttler<Config = any> extends About {
  check?(config: Config): Problem[];
  /** One decision per candidate, in their order. */
  decide(config: Config, round: Round, candidates: Job[]): Answer;
}

export function throttler<Config>(plugin: Throttler<Config>): object;
