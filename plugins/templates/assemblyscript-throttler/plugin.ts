// At most `limit` jobs of each type at a time. Change it into your own rule.

import {
  Answer, Description, Dimension, Job, Json, Problem, Round, Throttler, hold, run,
} from "./sdk/throttler";

export class Throttle extends Throttler {
  describe(): Description {
    return new Description("At most `limit` jobs of each type at a time.");
  }

  check(config: Json): Problem[] {
    const limit = config.get("limit");
    const valid = limit.isWhole && limit.integer >= 0;
    return valid ? [] : [new Problem("/limit", "must be a whole number of at least 0")];
  }

  decide(config: Json, round: Round, candidates: Job[]): Answer {
    const limit = <u64>config.get("limit").integer;
    // The running jobs, and those that this call runs.
    const used = round.running.weights(Dimension.jobType);
    const answer = new Answer();
    for (let i = 0; i < candidates.length; i++) {
      const job = candidates[i];
      const running: u64 = used.has(job.jobType) ? used.get(job.jobType) : 0;
      if (running + job.weight > limit) {
        answer.decisions.push(hold(`the limit for ${job.jobType} jobs is reached`));
      } else {
        used.set(job.jobType, running + job.weight);
        answer.decisions.push(run());
      }
    }
    return answer;
  }
}
