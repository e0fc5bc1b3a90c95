import type { About, Attribute, Job, Problem } from './common.js';

export { attribute, dataOf } from './common.js';
export type { About, Attribute, Job, Problem };

export interface Failure {
  attempt: number;
  /** `failed`, `timeout`, `lease_expired`, `connection_lost` or `not_delivered`. */
  reason: string;
  message?: string;
  /** The HTTP status of the target's answer, if there was one. */
  status?: number;
  /** The details that the worker reported, as JSON text. */
  details?: string;
  startedAt: number;
  endedAt: number;
}

export interface FailedJob {
  job: Job;
  last: Failure;
  /** Oldest first, at most 50. */
  earlier: Failure[];
  /** The earliest next attempt that the target accepts (`Retry-After`). */
  notBefore?: number;
}

/** Replacements for the job's data and priority. */
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
