// Retry strategies for tidegate, in JavaScript:
//
//   import { retryStrategy, after, giveUp } from './sdk/retry.js';
//   export const retry = retryStrategy({ about, check(config), onFailure(config, call, failed, last) });

import {
  asJobs,
  begin,
  checkConfig,
  clock,
  dataOf,
  describe,
  failed as failure,
  instant,
  log,
  metrics,
  number,
  string,
  text,
  whole,
} from './common.js';
import { state, stateKey } from './state.js';

export { clock, dataOf, log, metrics, stateKey };

class Verdict {
  constructor(tag, val) {
    this.tag = tag;
    this.val = val;
  }
}

// The longest timeout, in milliseconds.
const YEAR = 365 * 86_400_000;

// A changed number of the job; undefined keeps it.
const changed = (value, ...bounds) => (value === undefined || value === null ? undefined : whole(value, ...bounds));

/** Another attempt at `at`, or at once if `at` is past. The changes replace what the job has. */
export function retryAt(at, { data, priority, weight, attemptsLeft, timeout, target } = {}) {
  const json = data === undefined ? undefined : JSON.stringify(data);
  if (json === undefined && data !== undefined) throw new TypeError(`data must be a JSON value, not ${text(data)}`);
  return new Verdict('retry', {
    at: instant(at < 0 ? 0 : at, 'at'),
    data: json,
    priority: changed(priority, 'priority', -(2 ** 31), 2 ** 31 - 1, '32 bits'),
    weight: changed(weight, 'weight', 0, 2 ** 31 - 1),
    attemptsLeft: changed(attemptsLeft, 'attemptsLeft', 1, 65535),
    timeout: changed(timeout, 'timeout', 1, YEAR),
    target: target === undefined || target === null ? undefined : string(target, 'target'),
  });
}

/** Another attempt this many seconds from now. The changes replace what the job has. */
export const after = (seconds, changes) => retryAt(clock.now() + number(seconds, 'seconds') * 1000, changes);

/** No more attempts; the job ends `failed`, with this message if it is given. */
export const giveUp = (message) => new Verdict('give-up', message === undefined || message === null ? undefined : String(message));

/** Makes a component's `retry` from the author's functions. */
export function retryStrategy(plugin) {
  return {
    describe: () => describe(plugin),
    checkConfig: (config) => checkConfig(plugin, config),
    onFailure(context, failed, last) {
      try {
        const config = begin(context);
        asJobs([failed]);
        const verdict = plugin.onFailure(config, { queue: context.queue, now: context.now, state }, failed, last);
        if (!(verdict instanceof Verdict)) {
          throw new TypeError(`onFailure returned ${text(verdict)}: make it by after(), retryAt() or giveUp()`);
        }
        return verdict;
      } catch (error) {
        throw failure(error);
      }
    },
  };
}
