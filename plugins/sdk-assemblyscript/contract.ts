// What throttlers and retry strategies share. Instants are milliseconds since 1970.

import {
  RESULT, Utf8, block, readOptionalStatus, readOptionalText, readOptionalTime, readText, writeText,
  writeOptionalText, writeTexts,
} from "./abi";
import { Json } from "./json";

@external("tidegate:plugin/jobs@0.2.0", "data")
declare function jobsData(id: usize, bytes: usize, result: usize): void;

/** One attribute of a job. A number has its shortest decimal form (`2`, `0.5`). */
export class Attribute {
  constructor(public name: string, public value: string) {}
}

/** Something with attributes, which are sorted by name. */
export class Attributed {
  attributes: Attribute[] = [];

  /** The value of an attribute; null if it has none of that name. */
  attribute(name: string): string | null {
    for (let index = 0; index < this.attributes.length; index++) {
      if (this.attributes[index].name == name) return this.attributes[index].value;
    }
    return null;
  }
}

/** An attempt that failed. */
export class Failure {
  /** The number of the attempt, from 1. */
  attempt: u32 = 0;
  /** `failed`, `timeout`, `lease_expired`, `connection_lost` or `not_delivered`. */
  reason: string = "";
  message: string | null = null;
  /** The HTTP status of the target's response; 0 if there was none. */
  status: u16 = 0;
  /** The details that the worker reported, as JSON text. */
  details: string | null = null;
  startedAt: u64 = 0;
  endedAt: u64 = 0;
  /** The earliest next attempt that the worker or the target requested; 0 if neither did. */
  notBefore: u64 = 0;
}

/** A candidate of a throttler, or the failed job of a retry strategy. */
export class Job extends Attributed {
  id: string = "";
  jobType: string = "";
  /** Jobs with a lower number start first. */
  priority: i32 = 0;
  /** The capacity units that the job takes. */
  weight: u32 = 0;
  /** For a throttler: the attempt that would start. For a retry strategy: the one that failed. */
  attempt: u32 = 0;
  /** The job's `max_attempts`. */
  attempts: u32 = 0;
  createdAt: u64 = 0;
  /** When the job is, or was, due. For a retry strategy: the earliest next attempt. */
  runAt: u64 = 0;
  /** No attempt starts after this time; 0 if there is none. */
  expiresAt: u64 = 0;
  /** The job ends `failed` at this time if it has not ended before; 0 if there is none. */
  deadlineAt: u64 = 0;
  /** The host of the URL that receives the job. Null for a job that workers lease. */
  targetHost: string | null = null;
  /** The id of the job that this one runs again. */
  replayOf: string | null = null;
  /** The key by which a later event or request finds the job. */
  correlationKey: string | null = null;
  /** The failed attempts before `attempt`, oldest first. A throttler declares `needsEarlier`. */
  earlier: Failure[] = [];

  /** The job's data as JSON text; null if it has none. Needs `needsData`. */
  dataText(): string | null {
    const id = new Utf8(this.id);
    jobsData(id.start, id.length, RESULT);
    return readOptionalText(RESULT);
  }
  /** The job's data; missing if it has none. Needs `needsData`. */
  data(): Json {
    const text = this.dataText();
    return text === null ? new Json() : Json.parse(text);
  }
}

/** An error in a configuration. */
export class Problem {
  /** `path` is a JSON pointer to the wrong part (`/shares/east`), or empty. */
  constructor(public path: string, public message: string) {}
}

/** The declarations of a plugin. A plugin receives only what it declares. */
export class Description {
  /** JSON Schema of the configuration, as JSON text. */
  configSchema: string | null = null;
  /** The version of the state's format. After a change the state starts empty. 0 without state. */
  stateVersion: u32 = 0;
  /** Attributes that group the running set; `*` for any, if the configuration names them. */
  groupBy: string[] = [];
  /** Whether it calls `round.running.page`. */
  needsRunningJobs: bool = false;
  /** Whether it reads the data of jobs. */
  needsData: bool = false;
  /** Whether it reads `round.ended`. */
  needsEnded: bool = false;
  /** Whether a throttler reads `job.earlier`. A retry strategy always receives it. */
  needsEarlier: bool = false;
  /**
   * Attributes that group what waits: at most 2, which the queue's `partition_by` and
   * `partition_then_by` name. `*` permits both.
   */
  waitingBy: string[] = [];

  /** `about` is a sentence for operators. */
  constructor(public about: string) {}
}

/** What throttlers and retry strategies have in common. */
export abstract class Plugin {
  /** Declares what the plugin needs. */
  abstract describe(): Description;
  /** Returns the errors of a configuration. Empty if it is valid. */
  check(config: Json): Problem[] {
    return [];
  }
}

const PROBLEM_BYTES: i32 = 16;
const ATTRIBUTE_BYTES: i32 = 16;
const FAILURE_BYTES: i32 = 72;
/** The bytes of a job. */
export const JOB_BYTES: i32 = 136;

/** Reads a list of attributes. */
export function readAttributes(at: usize): Attribute[] {
  const start: usize = load<u32>(at);
  const length: i32 = load<u32>(at, 4);
  const attributes = new Array<Attribute>(length);
  for (let index = 0; index < length; index++) {
    const attribute = start + index * ATTRIBUTE_BYTES;
    attributes[index] = new Attribute(readText(attribute), readText(attribute + 8));
  }
  return attributes;
}

/** Reads a failure. */
export function readFailure(at: usize): Failure {
  const failure = new Failure();
  failure.attempt = load<u32>(at);
  failure.reason = readText(at + 4);
  failure.message = readOptionalText(at + 12);
  failure.status = readOptionalStatus(at + 24);
  failure.details = readOptionalText(at + 28);
  failure.startedAt = load<u64>(at, 40);
  failure.endedAt = load<u64>(at, 48);
  failure.notBefore = readOptionalTime(at + 56);
  return failure;
}

/** Reads a job. */
export function readJob(at: usize): Job {
  const job = new Job();
  job.id = readText(at);
  job.jobType = readText(at + 8);
  job.priority = load<i32>(at, 16);
  job.weight = load<u32>(at, 20);
  job.attributes = readAttributes(at + 24);
  job.attempt = load<u32>(at, 32);
  job.attempts = load<u32>(at, 36);
  job.createdAt = load<u64>(at, 40);
  job.runAt = load<u64>(at, 48);
  job.expiresAt = readOptionalTime(at + 56);
  job.deadlineAt = readOptionalTime(at + 72);
  job.targetHost = readOptionalText(at + 88);
  job.replayOf = readOptionalText(at + 100);
  job.correlationKey = readOptionalText(at + 112);
  const earlier: usize = load<u32>(at, 124);
  const length: i32 = load<u32>(at, 128);
  for (let index = 0; index < length; index++) {
    job.earlier.push(readFailure(earlier + index * FAILURE_BYTES));
  }
  return job;
}

/** The answer of `describe`. */
export function described(plugin: Plugin): usize {
  const description = plugin.describe();
  const answer = block(44);
  writeText(answer, description.about);
  writeOptionalText(answer + 8, description.configSchema);
  store<u32>(answer, description.stateVersion, 20);
  writeTexts(answer + 24, description.groupBy);
  store<bool>(answer, description.needsRunningJobs, 32);
  store<bool>(answer, description.needsData, 33);
  store<bool>(answer, description.needsEnded, 34);
  store<bool>(answer, description.needsEarlier, 35);
  writeTexts(answer + 36, description.waitingBy);
  return answer;
}

/** The answer of `check-config`. */
export function checked(plugin: Plugin, text: string): usize {
  const config = Json.parse(text);
  const problems = config.error == "" ? plugin.check(config) : [new Problem("", config.error)];
  const list = block(problems.length * PROBLEM_BYTES);
  for (let index = 0; index < problems.length; index++) {
    const problem = list + index * PROBLEM_BYTES;
    writeText(problem, problems[index].path);
    writeText(problem + 8, problems[index].message);
  }
  const answer = block(8);
  store<u32>(answer, list);
  store<u32>(answer, problems.length, 4);
  return answer;
}
