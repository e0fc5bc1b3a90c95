import { retryStrategy, after, giveUp } from './sdk/retry.js';

/** The configuration of a job type. */
interface Config {
  base_seconds: number;
}

export const retry = retryStrategy<Config>({
  about: 'Gives up what is gone, and waits longer each time for the rest.',

  check(config) {
    return config.base_seconds > 0 ? [] : [{ path: '/base_seconds', message: 'must be a number over 0' }];
  },

  onFailure(config, call, failed, last) {
    if (last.status === 404 || last.status === 410) return giveUp('what it was for is gone');
    // A day at most.
    return after(Math.min(config.base_seconds * 2 ** (failed.attempt - 1), 86400));
  },
});
