import type { About, Attribute, Job, Problem } from './common.js';

export { attribute, dataOf } from './common.js';
export type { About, Attribute, Job, Problem };

export interface Failure {
  attempt: number;
  /** `failed`, `timeout`, `lost`, `not_delivered`, ... */
  reason: string;
  message?: string;
  /** The HTTP status its target answered, where there was one. */
  status?: number;
  /** The worker's own words, as JSON text. */
  details?: string;
  startedAt: number;
  endedAt: number;
}

export interface FailedJob {
  job: Job;
  last: Failure;
  /** Oldest first, at most 50. */
  earlier: Failure[];
  /** The target asked not to be tried before this. */
  notBefore?: number;
}

/** What replaces the job's. */
export interface Changes {
  data?: unknown;
  priority?: number;
}

/** Made by retryAt, after and giveUp. */
export interface Verdict {
  tag: 'retry' | 'give-up';
}

export function retryAt(at: number | Date, changes?: Changes): Verdict;
export function after(seconds: number, changes?: Changes): Verdict;
export function giveUp(message?: string): Verdict;

export interface Call {
  queue: string;
  now: number;
}

export interface RetryStrategy<Config = any> extends About {
  check?(config: Config): Problem[];
  onFailure(config: Config, call: Call, failed: FailedJob): Verdict;
}

export function retryStrategy<Config>(plugin: RetryStrategy<Config>): object;
