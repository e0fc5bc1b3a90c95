// Types for an editor. Instants are milliseconds since 1970, UTC.

export interface Attribute {
  name: string;
  value: string;
}

export interface Job {
  id: string;
  jobType: string;
  /** Lower starts first. */
  priority: number;
  /** Capacity units that it takes. */
  weight: number;
  attributes: Attribute[];
  /** From 1: the attempt that would start, or that failed. */
  attempt: number;
  attempts: number;
  createdAt: number;
  runAt: number;
  expiresAt?: number;
  deadlineAt?: number;
}

/** What is wrong with a configuration, and a JSON pointer to it. */
export interface Problem {
  path: string;
  message: string;
}

/** The declarations of a plugin. A call contains only what is declared. */
export interface About {
  /** A sentence for operators. */
  about: string;
  configSchema?: object | string;
  /** The version of the state's form; after a change of it the state starts empty. */
  stateVersion?: number;
  /** Attributes that group the running jobs; '*' for any, if the configuration names them. */
  groupBy?: string[];
  /** Whether `running.page` is called. */
  needsRunningJobs?: boolean;
  /** Whether `dataOf` is called. */
  needsData?: boolean;
  /** Whether `round.ended` is read. */
  needsEnded?: boolean;
}

export function attribute(job: { attributes: Attribute[] }, name: string): string | undefined;
export function dataOf(job: { id: string }): any;
