import type { About, Attribute, Attributed, Failure, Job, LocalTime, Problem, Shown } from './common.js';
import type { State } from './state.js';

export { clock, dataOf, log, metrics } from './common.js';
export { stateKey } from './state.js';
export type { About, Attribute, Attributed, Failure, Job, LocalTime, Problem, Shown, State };

/** Made by run, hold, holdUntil, reschedule and drop. */
export interface Decision {
  readonly action: { readonly tag: 'run' | 'hold' | 'reschedule' | 'drop'; readonly val?: number };
  readonly reason?: string;
}

/** The job starts now. */
export function run(): Decision;
/** The job waits, and is offered again at the next change of the queue. */
export function hold(reason?: string): Decision;
/** The job waits, and is offered again at the next change of the queue, at the latest at `until`. */
export function holdUntil(until: number | Date, reason?: string): Decision;
/** The job is due at `at`: after now, and within 366 days. */
export function reschedule(at: number | Date, reason?: string): Decision;
/** The job ends `dropped`. */
export function drop(reason?: string): Decision;

export type Dimension = 'job-type' | 'priority' | { attribute: string };

/** The running jobs with one value of a dimension. */
export interface Group {
  readonly value: string;
  readonly count: number;
  readonly weight: number;
}

export interface RunningJob extends Attributed {
  readonly id: string;
  readonly jobType: string;
  readonly priority: number;
  /** 0 for a critical job, which takes no capacity. */
  readonly weight: number;
  readonly critical: boolean;
  readonly grantedAt: number;
}

/** The running jobs, without the candidates of this call. */
export interface Running {
  count(): number;
  weight(): number;
  /** The groups of all values of a dimension, sorted by value. Jobs without the attribute are in no group. */
  groups(by: Dimension): Group[];
  /** The group of one value of a dimension. Its count and weight are 0 if no job has the value. */
  inGroup(by: Dimension, value: string | number): Group;
  /** The running weight by the values of a dimension. */
  weights(by: Dimension): Map<string, number>;
  /** The earliest granted first; at most 1000. Needs `needsRunningJobs`. */
  page(offset: number, limit: number): RunningJob[];
}

/** The waiting jobs with one value of an attribute. */
export interface WaitingGroup {
  readonly value: string;
  readonly count: number;
  readonly weight: number;
  /** When the first of them was due. */
  readonly oldestDueAt: number;
  /** Whether there may be more: counting stopped at a bound. */
  readonly atLeast: boolean;
}

/** What waits in the queue: estimates by the attributes in `waitingBy`. A group of each candidate is there. */
export interface Waiting {
  /** The groups of the values of an attribute, sorted by value. */
  groups(by: string): WaitingGroup[];
  /** The jobs of all partitions that are in no group, because there are too many; null if there are none. */
  others(): WaitingGroup | null;
  /** When the queue was counted; null if that has not happened yet. */
  countedAt(): number | null;
}

/** An attempt of the queue that ended. */
export interface Ended extends Attributed {
  readonly id: string;
  readonly jobType: string;
  readonly priority: number;
  /** The capacity units that the job took. */
  readonly weight: number;
  readonly targetHost: string | null;
  readonly attempt: number;
  readonly startedAt: number;
  readonly endedAt: number;
  /** False for an attempt that failed or was cancelled. */
  readonly succeeded: boolean;
  /**
   * Why the attempt failed: `failed`, `timeout`, `lease_expired`, `connection_lost`, `not_delivered`, `outcome_unknown` or
   * `deadline`. For an attempt that a worker handed back: `released` or `snoozed`. Null if it was cancelled.
   */
  readonly reason: string | null;
  readonly message: string | null;
  /** The HTTP status of the target's response, if there was one. */
  readonly status: number | null;
  /** The details that the worker reported, as JSON text. */
  readonly details: string | null;
  /** The earliest next attempt that the worker or the target requested (`Retry-After`). */
  readonly notBefore: number | null;
}

export interface Round {
  /** The queue's name. */
  readonly queue: string;
  /** The time of the decision. */
  readonly now: number;
  /** The queue's own concurrency, if it has one. */
  readonly concurrency: number | null;
  /** How many jobs workers can take now. */
  readonly room: number;
  /** The attempts that ended since the last answer that counted: at most 1000. Empty without `needsEnded`. */
  readonly ended: readonly Ended[];
  readonly running: Running;
  readonly waiting: Waiting;
  readonly state: State;
}

/** A list alone means `more: true`: jobs further back in the queue may run too. */
export type Answer = Decision[] | { decisions: Decision[]; more?: boolean };

export interface Throttler<Config = any> extends About {
  /** The errors of a configuration. */
  check?(config: Config): Problem[];
  /** One decision per candidate, in their order. */
  decide(config: Config, round: Round, candidates: Job[]): Answer;
}

/** Makes a component's `throttle` from the author's functions. */
export function throttler<Config>(plugin: Throttler<Config>): object;
