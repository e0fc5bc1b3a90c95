// Gives up if the target is gone, and waits longer each time otherwise. Change it into your own
// rule.

import {
  Call, Description, Failure, Job, Json, Problem, RetryStrategy, Verdict, giveUp,
} from "./sdk/retry";

export class Retry extends RetryStrategy {
  describe(): Description {
    return new Description("Gives up what is gone, and waits longer each time for the rest.");
  }

  check(config: Json): Problem[] {
    const valid = config.get("base_seconds").number > 0;
    return valid ? [] : [new Problem("/base_seconds", "must be a number over 0")];
  }

  onFailure(config: Json, call: Call, job: Job, last: Failure): Verdict {
    if (last.status == 404 || last.status == 410) return giveUp("what it was for is gone");
    const wait = config.get("base_seconds").number * Math.pow(2, job.attempt - 1);
    // A day at most.
    return call.after(Math.min(wait, 86400));
  }
}
