// Types for an editor. Instants are milliseconds since 1970, UTC. A field without a value is null.

export interface Attribute {
  readonly name: string;
  /** A number has its shortest decimal form (`2`, `0.5`). A boolean is `true` or `false`. */
  readonly value: string;
}

/** What jobs, running jobs and ended attempts have. */
export interface Attributed {
  /** Sorted by name. Names are unique. */
  readonly attributes: readonly Attribute[];
  /** The value of an attribute; undefined if the job has none of that name. */
  attribute(name: string): string | undefined;
}

/** An attempt that failed. */
export interface Failure {
  /** The number of the attempt, from 1. */
  readonly attempt: number;
  readonly reason: 'failed' | 'timeout' | 'lease_expired' | 'connection_lost' | 'not_delivered';
  readonly message: string | null;
  /** The HTTP status of the target's response, if there was one. */
  readonly status: number | null;
  /** The details that the worker reported, as JSON text. */
  readonly details: string | null;
  readonly startedAt: number;
  readonly endedAt: number;
  /** The earliest next attempt that the worker or the target requested (`Retry-After`). */
  readonly notBefore: number | null;
}

export interface Job extends Attributed {
  readonly id: string;
  readonly jobType: string;
  /** Jobs with a lower number start first. */
  readonly priority: number;
  /** The capacity units that the job takes. */
  readonly weight: number;
  /** From 1. For a throttler: the attempt that would start. For a retry strategy: the attempt that failed. */
  readonly attempt: number;
  /** The job's `max_attempts`. */
  readonly attempts: number;
  readonly createdAt: number;
  /** For a throttler: when the job is, or was, due. For a retry strategy: the earliest time of the next attempt. */
  readonly runAt: number;
  /** No attempt starts after this time. */
  readonly expiresAt: number | null;
  /** The job ends `failed` at this time if it has not ended before. */
  readonly deadlineAt: number | null;
  /** The host of the URL that receives the job, in lower case. Null for a job that workers lease. */
  readonly targetHost: string | null;
  /** The id of the job that this one runs again. */
  readonly replayOf: string | null;
  /** The key by which a later event or request finds the job. */
  readonly correlationKey: string | null;
  /** The failed attempts before `attempt`, oldest first: the latest 50. Empty for a throttler without `needsEarlier`. */
  readonly earlier: readonly Failure[];
}

/** An error in a configuration, and a JSON pointer to it. */
export interface Problem {
  path: string;
  message: string;
}

/** The declarations of a plugin. A call contains only what is declared. */
export interface About {
  /** A sentence for operators. */
  about: string;
  configSchema?: object | string;
  /** The version of the state's format. With another version the state starts empty. */
  stateVersion?: number;
  /** Attributes that group the running jobs; '*' for any, if the configuration names them. */
  groupBy?: string[];
  /** Whether it calls `running.page`. */
  needsRunningJobs?: boolean;
  /** Whether it calls `dataOf`. */
  needsData?: boolean;
  /** Whether it reads `round.ended`. */
  needsEnded?: boolean;
  /** Whether it reads `job.earlier`. A retry strategy always receives it. */
  needsEarlier?: boolean;
  /** Attributes that group what waits: at most 2, which the queue's `partition_by` and `partition_then_by` name. '*' permits both. */
  waitingBy?: string[];
}

/** The data of a candidate, or of the failed job; undefined if it has none. Needs `needsData`. */
export function dataOf(job: { readonly id: string }): any;

/** A date and a time of day, as a calendar and a clock on a wall show them. */
export interface LocalTime {
  readonly year: number;
  /** 1 to 12. */
  readonly month: number;
  /** 1 to 31. */
  readonly day: number;
  readonly hour: number;
  readonly minute: number;
  readonly second: number;
  readonly millisecond: number;
}

/** What a time zone shows at an instant. */
export interface Shown {
  readonly time: LocalTime;
  /** 1 is Monday, 7 is Sunday. */
  readonly weekday: number;
  /** How far local time is ahead of UTC, in seconds. */
  readonly offset: number;
}

/** The clock. It does not advance during a call. `Date` has the same time. */
export const clock: {
  /** The time of the decision. 0 in `check`. */
  now(): number;
  /**
   * What a zone of the IANA time zone database, such as 'Europe/Berlin', shows at an instant, by default now. Throws an
   * error that names what is wrong with an argument.
   */
  local(zone: string, at?: number | Date): Shown;
  /**
   * The instant at which a zone shows a time. Parts of the time of day that are absent are 0. If the zone shows the time
   * twice, the first instant. If it skips the time, the instant of the change. Throws an error that names what is wrong
   * with an argument.
   */
  instant(zone: string, time: Pick<LocalTime, 'year' | 'month' | 'day'> & Partial<LocalTime>): number;
};

/**
 * Metrics of the plugin's own, for operators: `tidegate_plugin_counter_total` and `tidegate_plugin_gauge`. A name has 1 to
 * 64 bytes of `a-z`, `0-9` and `_`, a label at most 64 bytes. What exceeds a bound of the contract is left out.
 */
export const metrics: {
  /** Adds to a counter: by default 1. A negative amount is left out. */
  add(name: string, label?: string, amount?: number): void;
  /** Sets a gauge. */
  set(name: string, label: string, value: number): void;
};

/** The log: `tidegate plugin logs` shows it. `console` writes there too. */
export const log: {
  debug(...values: unknown[]): void;
  info(...values: unknown[]): void;
  warn(...values: unknown[]): void;
  error(...values: unknown[]): void;
};
