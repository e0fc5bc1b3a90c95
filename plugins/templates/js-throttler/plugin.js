import { throttler, run, hold } from './sdk/throttler.js';

export const throttle = throttler({
  about: 'At most `limit` jobs of each type at a time.',

  check(config) {
    return Number.isInteger(config.limit) ? [] : [{ path: '/limit', message: 'must be a whole number' }];
  },

  decide(config, round, candidates) {
    // What runs already, and what this call runs.
    const used = round.running.weights('job-type');
    return candidates.map((job) => {
      const weight = (used.get(job.jobType) ?? 0) + job.weight;
      if (weight > config.limit) return hold(`as many ${job.jobType} jobs run as may`);
      used.set(job.jobType, weight);
      return run();
    });
  },
});
