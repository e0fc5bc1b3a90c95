// Retry strategies for tidegate, in AssemblyScript. In `plugin.ts`:
//
//   import { Call, Description, Failure, Job, Json, RetryStrategy, Verdict } from "./sdk/retry";
//
//   export class Retry extends RetryStrategy {
//     describe(): Description { return new Description("Tries again after five seconds."); }
//     onFailure(config: Json, call: Call, job: Job, last: Failure): Verdict {
//       return call.after(5);
//     }
//   }
//
// The class must have this name: `sdk/exports/retry.ts` exports it from the component.

import { block, writeOptionalText, writeText } from "./abi";
import { Failure, Job, Plugin } from "./contract";
import { Json } from "./json";
import { State } from "./state";

export { Attribute, Description, Failure, Job, Problem } from "./contract";
export { LocalTime, Shown, clock, log, metrics, random } from "./host";
export { Json } from "./json";
export { State } from "./state";

/** The base of an author's `Retry`. */
export abstract class RetryStrategy extends Plugin {
  /**
   * Decides what follows the failure `last` of `job`, whose earlier failures are in `job.earlier`.
   * It is not called when no attempts are left.
   */
  abstract onFailure(config: Json, call: Call, job: Job, last: Failure): Verdict;
}

/** The inputs of a decision, in addition to the configuration and the failure. */
export class Call {
  /**
   * The state of the strategy in the queue. It needs a `stateVersion` of at least 1. If another
   * decision changed it meanwhile, the call is repeated.
   */
  state: State = new State();

  constructor(
    /** The name of the job's queue. */
    public queue: string,
    /** The time of the decision. There is no other clock. */
    public now: u64,
    /** Differs between calls, and is recorded with the call. */
    public seed: u64,
  ) {}

  /** Another attempt this many seconds from now. */
  after(seconds: f64): Verdict {
    return retryAt(this.now + <u64>Math.max(seconds * 1000, 0));
  }
}

/** Another attempt at `at`: within 366 days, and at least 50 ms after the call. */
export function retryAt(at: u64): Verdict {
  const verdict = new Verdict();
  verdict.retries = true;
  verdict.at = at;
  return verdict;
}

/** No more attempts: the job ends `failed`, with this message if it is given. */
export function giveUp(message: string | null = null): Verdict {
  const verdict = new Verdict();
  verdict.message = message;
  return verdict;
}

/** What follows a failed attempt. `call.after`, `retryAt` and `giveUp` make one. */
export class Verdict {
  retries: bool = false;
  at: u64 = 0;
  message: string | null = null;
  error: string | null = null;
  private data: string | null = null;
  private newPriority: bool = false;
  private priority: i32 = 0;
  private newWeight: bool = false;
  private weight: u32 = 0;
  private attemptsLeft: u32 = 0;
  private timeout: u64 = 0;
  private target: string | null = null;

  /** No verdict. The built-in backoff decides, and users see the message. */
  static failed(message: string): Verdict {
    const verdict = new Verdict();
    verdict.error = message;
    return verdict;
  }

  /** Replaces the job's data. Returns the verdict, as the following do. */
  withData(data: Json): Verdict {
    this.data = data.toString();
    return this;
  }
  /** Replaces the job's priority. */
  withPriority(priority: i32): Verdict {
    this.newPriority = true;
    this.priority = priority;
    return this;
  }
  /** Replaces the job's weight. */
  withWeight(weight: u32): Verdict {
    this.newWeight = true;
    this.weight = weight;
    return this;
  }
  /** How many attempts the job still has, including the next one: at least 1. */
  withAttemptsLeft(attempts: u32): Verdict {
    this.attemptsLeft = attempts;
    return this;
  }
  /** Replaces the timeout of the job's attempts, in milliseconds: 1 to a year. */
  withTimeout(millis: u64): Verdict {
    this.timeout = millis;
    return this;
  }

  /** Sets the target: a name in `retry_targets` of the job's type, or "" for the type's own. */
  withTarget(name: string): Verdict {
    this.target = name;
    return this;
  }

  /** Writes the result of `on-failure`. */
  write(): usize {
    const result = block(96);
    const error = this.error;
    if (error !== null) {
      store<u8>(result, 1);
      writeText(result + 8, error);
      return result;
    }
    if (!this.retries) {
      store<u8>(result, 1, 8);
      writeOptionalText(result + 16, this.message);
      return result;
    }
    const plan = result + 16;
    store<u64>(plan, this.at);
    writeOptionalText(plan + 8, this.data);
    store<bool>(plan, this.newPriority, 20);
    store<i32>(plan, this.priority, 24);
    store<bool>(plan, this.newWeight, 28);
    store<u32>(plan, this.weight, 32);
    store<bool>(plan, this.attemptsLeft != 0, 36);
    store<u32>(plan, this.attemptsLeft, 40);
    store<bool>(plan, this.timeout != 0, 48);
    store<u64>(plan, this.timeout, 56);
    writeOptionalText(plan + 64, this.target);
    return result;
  }
}
