// Types for an editor. Instants are milliseconds since 1970, UTC.

export interface Attribute {
  name: string;
  value: string;
}

export interface Job {
  id: string;
  jobType: string;
  /** Lower goes first. */
  priority: number;
  /** Capacity units it takes. */
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

/** What a plugin says about itself. What it does not declare it is not given. */
export interface About {
  /** A sentence for operators. */
  about: string;
  configSchema?: object | string;
  /** The shape of the state; another number starts with none. */
  stateVersion?: number;
  /** Attributes by which the running set is asked; '*' for any, where the configuration names them. */
  groupBy?: string[];
  /** Whether `running.page` is called. */
  needsRunningJobs?: boolean;
  /** Whether `dataOf` is called. */
  needsData?: boolean;
  /** Whether `round.ended` is looked at. */
  needsEnded?: boolean;
}

export function attribute(job: { attributes: Attribute[] }, name: string): string | undefined;
export function dataOf(job: { id: string }): any;
