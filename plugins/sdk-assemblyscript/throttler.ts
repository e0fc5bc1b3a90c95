// Throttlers for tidegate, in AssemblyScript. In `plugin.ts`:
//
//   import { Answer, Description, Job, Json, Round, Throttler, run } from "./sdk/throttler";
//
//   export class Throttle extends Throttler {
//     describe(): Description { return new Description("Runs all candidates."); }
//     decide(config: Json, round: Round, candidates: Job[]): Answer {
//       const answer = new Answer();
//       for (let i = 0; i < candidates.length; i++) answer.decisions.push(run());
//       return answer;
//     }
//   }
//
// The class must have this name: `sdk/exports/throttle.ts` exports it from the component.

import {
  RESULT, Utf8, block, readOptionalStatus, readOptionalText, readOptionalTime, readText,
  writeOptionalText, writeText,
} from "./abi";
import { Attributed, Job, Plugin, readAttributes } from "./contract";
import { Json } from "./json";
import { State } from "./state";

export { Attribute, Description, Failure, Job, Problem } from "./contract";
export { LocalTime, Shown, clock, log, metrics, random } from "./host";
export { Json } from "./json";
export { State } from "./state";

@external("tidegate:plugin/running@0.2.0", "count")
declare function runningCount(): u32;

@external("tidegate:plugin/running@0.2.0", "weight")
declare function runningWeight(): u64;

@external("tidegate:plugin/running@0.2.0", "groups")
declare function runningGroups(by: i32, name: usize, bytes: usize, result: usize): void;

@external("tidegate:plugin/running@0.2.0", "in-group")
declare function runningInGroup(
  by: i32, name: usize, bytes: usize, value: usize, valueBytes: usize, result: usize,
): void;

@external("tidegate:plugin/running@0.2.0", "page")
declare function runningPage(offset: u32, limit: u32, result: usize): void;

@external("tidegate:plugin/waiting@0.2.0", "groups")
declare function waitingGroups(by: usize, bytes: usize, result: usize): void;

@external("tidegate:plugin/waiting@0.2.0", "others")
declare function waitingOthers(result: usize): void;

@external("tidegate:plugin/waiting@0.2.0", "counted-at")
declare function waitingCountedAt(result: usize): void;

/** The base of an author's `Throttle`. */
export abstract class Throttler extends Plugin {
  /**
   * Decides on candidates: one decision for each, in their order. They are in the queue's order,
   * and each of them alone fits the queue's limits. `round.running` does not contain the jobs that
   * this call runs, so count them.
   */
  abstract decide(config: Json, round: Round, candidates: Job[]): Answer;
}

/** What happens to a candidate. `run`, `hold`, `holdUntil`, `reschedule` and `drop` make one. */
export class Decision {
  /** `action` is its number in the contract, `at` the time of the action or 0. */
  constructor(public action: u8, public at: u64, public reason: string | null) {}
}

/** The job starts now. */
export function run(): Decision {
  return new Decision(0, 0, null);
}
/** The job waits. The next tick of the queue offers it again. */
export function hold(reason: string | null = null): Decision {
  return new Decision(1, 0, reason);
}
/** The job waits. The next tick offers it again, at the latest at `until`: within 366 days. */
export function holdUntil(until: u64, reason: string | null = null): Decision {
  return new Decision(1, until, reason);
}
/** The job is due at `at`: after now, and within 366 days. */
export function reschedule(at: u64, reason: string | null = null): Decision {
  return new Decision(2, at, reason);
}
/** The job ends `dropped`. */
export function drop(reason: string | null = null): Decision {
  return new Decision(3, 0, reason);
}

/** The answer of a call. */
export class Answer {
  decisions: Decision[] = [];
  /** Whether jobs further back in the queue may run too. */
  more: bool = true;
  error: string | null = null;

  /** No decision. The queue's `on_failure` decides on the candidates, and users see the message. */
  static failed(message: string): Answer {
    const answer = new Answer();
    answer.error = message;
    return answer;
  }
}

/** An attempt of the queue that ended. */
export class Ended extends Attributed {
  id: string = "";
  jobType: string = "";
  priority: i32 = 0;
  /** The capacity units that the job took. */
  weight: u32 = 0;
  targetHost: string | null = null;
  attempt: u32 = 0;
  startedAt: u64 = 0;
  endedAt: u64 = 0;
  /** False for an attempt that failed or was cancelled. */
  succeeded: bool = false;
  /** Why the attempt failed. Null if it was cancelled. */
  reason: string | null = null;
  message: string | null = null;
  /** The HTTP status of the target's response; 0 if there was none. */
  status: u16 = 0;
  /** The details that the worker reported, as JSON text. */
  details: string | null = null;
  /** The earliest next attempt that the worker or the target requested; 0 if neither did. */
  notBefore: u64 = 0;
}

/** The property that groups the running set. */
export class Dimension {
  private constructor(readonly number: i32, readonly name: string) {}

  static get jobType(): Dimension {
    return new Dimension(0, "");
  }
  static get priority(): Dimension {
    return new Dimension(1, "");
  }
  /** An attribute, which `groupBy` declares. */
  static attribute(name: string): Dimension {
    return new Dimension(2, name);
  }
}

/** The jobs with one value of a dimension: their number and their total weight. */
export class Group {
  constructor(public value: string, public count: u32, public weight: u64) {}
}

/** A granted job, whether started or not. */
export class RunningJob extends Attributed {
  id: string = "";
  jobType: string = "";
  priority: i32 = 0;
  /** 0 for a critical job, which takes no capacity. */
  weight: u32 = 0;
  critical: bool = false;
  grantedAt: u64 = 0;
}

/** The running set, without the candidates of this call. */
export class Running {
  count(): u32 {
    return runningCount();
  }
  /** The total weight of the running jobs. */
  weight(): u64 {
    return runningWeight();
  }
  /** The groups of all values of a dimension, sorted by value. */
  groups(by: Dimension): Group[] {
    const name = new Utf8(by.name);
    runningGroups(by.number, name.start, name.length, RESULT);
    const start: usize = load<u32>(RESULT);
    const groups = new Array<Group>(load<u32>(RESULT, 4));
    for (let index = 0; index < groups.length; index++) {
      groups[index] = readGroup(start + index * GROUP_BYTES);
    }
    return groups;
  }
  /** The group of one value of a dimension. Its count and weight are 0 if no job has the value. */
  inGroup(by: Dimension, value: string): Group {
    const name = new Utf8(by.name);
    const wanted = new Utf8(value);
    runningInGroup(by.number, name.start, name.length, wanted.start, wanted.length, RESULT);
    return readGroup(RESULT);
  }
  /** The running weight by the values of a dimension. */
  weights(by: Dimension): Map<string, u64> {
    const weights = new Map<string, u64>();
    const groups = this.groups(by);
    for (let index = 0; index < groups.length; index++) {
      weights.set(groups[index].value, groups[index].weight);
    }
    return weights;
  }
  /** The jobs, the earliest granted first; at most 1000. Needs `needsRunningJobs`. */
  page(offset: u32, limit: u32): RunningJob[] {
    runningPage(offset, limit, RESULT);
    const start: usize = load<u32>(RESULT);
    const page = new Array<RunningJob>(load<u32>(RESULT, 4));
    for (let index = 0; index < page.length; index++) {
      page[index] = readRunningJob(start + index * RUNNING_JOB_BYTES);
    }
    return page;
  }
}

/** The waiting jobs with one value of an attribute. */
export class WaitingGroup {
  value: string = "";
  count: u32 = 0;
  weight: u64 = 0;
  /** When the first of them was due. */
  oldestDueAt: u64 = 0;
  /** Whether there may be more: counting stopped at a bound. */
  atLeast: bool = false;
}

/**
 * What waits in the queue: estimates by the attributes in `waitingBy`. A group of each candidate is
 * there.
 */
export class Waiting {
  /** The groups of the values of an attribute, sorted by value. */
  groups(by: string): WaitingGroup[] {
    const name = new Utf8(by);
    waitingGroups(name.start, name.length, RESULT);
    const start: usize = load<u32>(RESULT);
    const groups = new Array<WaitingGroup>(load<u32>(RESULT, 4));
    for (let index = 0; index < groups.length; index++) {
      groups[index] = readWaitingGroup(start + index * WAITING_GROUP_BYTES);
    }
    return groups;
  }
  /** The jobs of all partitions that are in no group, because there are too many; null if none. */
  others(): WaitingGroup | null {
    waitingOthers(RESULT);
    return load<u8>(RESULT) == 0 ? null : readWaitingGroup(RESULT + 8);
  }
  /** When the queue was counted; 0 if that has not happened yet. */
  countedAt(): u64 {
    waitingCountedAt(RESULT);
    return readOptionalTime(RESULT);
  }
}

/** The inputs of a decision, in addition to the configuration and the candidates. */
export class Round {
  /** The queue's name. */
  queue: string = "";
  /** The time of the decision. There is no other clock. */
  now: u64 = 0;
  /** Differs between calls, and is recorded with the call. */
  seed: u64 = 0;
  /** The queue's own concurrency; -1 if it has none. */
  concurrency: i64 = -1;
  /** How many jobs workers can take now. */
  room: u32 = 0;
  /** The attempts that ended since the last answer that counted. Needs `needsEnded`. */
  ended: Ended[] = [];
  running: Running = new Running();
  waiting: Waiting = new Waiting();
  state: State = new State();
}

const GROUP_BYTES: i32 = 24;
const RUNNING_JOB_BYTES: i32 = 48;
const WAITING_GROUP_BYTES: i32 = 40;
const ENDED_BYTES: i32 = 128;
const DECISION_BYTES: i32 = 40;

function readGroup(at: usize): Group {
  return new Group(readText(at), load<u32>(at, 8), load<u64>(at, 16));
}

function readWaitingGroup(at: usize): WaitingGroup {
  const group = new WaitingGroup();
  group.value = readText(at);
  group.count = load<u32>(at, 8);
  group.weight = load<u64>(at, 16);
  group.oldestDueAt = load<u64>(at, 24);
  group.atLeast = load<bool>(at, 32);
  return group;
}

function readRunningJob(at: usize): RunningJob {
  const job = new RunningJob();
  job.id = readText(at);
  job.jobType = readText(at + 8);
  job.priority = load<i32>(at, 16);
  job.weight = load<u32>(at, 20);
  job.critical = load<bool>(at, 24);
  job.attributes = readAttributes(at + 28);
  job.grantedAt = load<u64>(at, 40);
  return job;
}

/** Reads a list of ended attempts. */
export function readEnded(start: usize, length: i32): Ended[] {
  const list = new Array<Ended>(length);
  for (let index = 0; index < length; index++) {
    const at = start + index * ENDED_BYTES;
    const ended = new Ended();
    ended.id = readText(at);
    ended.jobType = readText(at + 8);
    ended.priority = load<i32>(at, 16);
    ended.weight = load<u32>(at, 20);
    ended.attributes = readAttributes(at + 24);
    ended.targetHost = readOptionalText(at + 32);
    ended.attempt = load<u32>(at, 44);
    ended.startedAt = load<u64>(at, 48);
    ended.endedAt = load<u64>(at, 56);
    ended.succeeded = load<bool>(at, 64);
    ended.reason = readOptionalText(at + 68);
    ended.message = readOptionalText(at + 80);
    ended.status = readOptionalStatus(at + 92);
    ended.details = readOptionalText(at + 96);
    ended.notBefore = readOptionalTime(at + 112);
    list[index] = ended;
  }
  return list;
}

/** Writes the result of `decide` on `count` candidates. */
export function writeAnswer(answer: Answer, count: i32): usize {
  const result = block(16);
  let error = answer.error;
  if (error === null && answer.decisions.length != count) {
    error = `decide returned ${answer.decisions.length} decisions on ${count} candidates`;
  }
  if (error !== null) {
    store<u8>(result, 1);
    writeText(result + 4, error);
    return result;
  }
  const list = block(count * DECISION_BYTES);
  for (let index = 0; index < count; index++) {
    const decision = answer.decisions[index];
    const at = list + index * DECISION_BYTES;
    store<u8>(at, decision.action);
    if (decision.action == 2) {
      store<u64>(at, decision.at, 8);
    } else if (decision.at != 0) {
      store<u8>(at, 1, 8);
      store<u64>(at, decision.at, 16);
    }
    writeOptionalText(at + 24, decision.reason);
  }
  store<u32>(result, list, 4);
  store<u32>(result, count, 8);
  store<bool>(result, answer.more, 12);
  return result;
}
