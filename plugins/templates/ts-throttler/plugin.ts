import { throttler, run, hold } from './sdk/throttler.js';

/** The configuration of a queue. */
interface Config {
  limit: number;
}

export const throttle = throttler<Config>({
  about: 'At most `limit` jobs of each type at a time.',

  check(config) {
    return Number.isInteger(config.limit) ? [] : [{ path: '/limit', message: 'must be a whole number' }];
  },

  decide(config, round, candidates) {
    // The running jobs, and those that this call runs.
    const used = round.running.weights('job-type');
    return candidates.map((job) => {
      const weight = (used.get(job.jobType) ?? 0) + job.weight;
      if (weight > config.limit) return hold(`the limit for ${job.jobType} jobs is reached`);
      used.set(job.jobType, weight);
      return run();
    });
  },
});
