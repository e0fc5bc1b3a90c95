import type { About, Attribute, Attributed, Failure, Job, LocalTime, Problem, Shown } from './common.js';
import type { State } from './state.js';

export { clock, dataOf, log, metrics } from './common.js';
export { stateKey } from './state.js';
export type { About, Attribute, Attributed, Failure, Job, LocalTime, Problem, Shown, State };

/** Replacements for what the job has. What is absent or null stays. */
export interface Changes {
  /** A JSON value that replaces the job's data. Null is a value. */
  data?: unknown;
  priority?: number | null;
  weight?: number | null;
  /** How many attempts the job still has, including the next one: at least 1. */
  attemptsLeft?: number | null;
  /** The timeout of the job's attempts, in milliseconds: 1 to a year. */
  timeout?: number | null;
  /** A name in `retry_targets` of the job's type, or '' for the type's own target. */
  target?: string | null;
}

/** Made by retryAt, after and giveUp. */
export interface Verdict {
  readonly tag: 'retry' | 'give-up';
}

/** Another attempt at `at`, within 366 days, or at once if `at` is past. */
export function retryAt(at: number | Date, changes?: Changes): Verdict;
/** Another attempt this many seconds from now. */
export function after(seconds: number, changes?: Changes): Verdict;
/** No more attempts; the job ends `failed`, with this message if it is given. */
export function giveUp(message?: string): Verdict;

export interface Call {
  /** The queue's name. */
  readonly queue: string;
  /** The time of the decision. */
  readonly now: number;
  /** The state of the strategy. Needs a `stateVersion` of at least 1. After a change by another decision the call is repeated. */
  readonly state: State;
}

export interface RetryStrategy<Config = any> extends About {
  /** The errors of a configuration. */
  check?(config: Config): Problem[];
  /** Decides what follows `last`, the failure of an attempt of `failed`. `failed.earlier` has the failures before it. */
  onFailure(config: Config, call: Call, failed: Job, last: Failure): Verdict;
}

/** Makes a component's `retry` from the author's functions. */
export function retryStrategy<Config>(plugin: RetryStrategy<Config>): object;
