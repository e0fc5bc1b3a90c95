// Retry strategies for tidegate, in JavaScript:
//
//   import { retryStrategy, after, giveUp } from './sdk/retry.js';
//   export const retry = retryStrategy({ about, check(config), onFailure(config, call, failed) });

import { attribute, begin, checkConfig, dataOf, describe, guarded, instant } from './common.js';

export { attribute, dataOf };

/** Another attempt at `at`, or at once if `at` is past; `{ data, priority }` replace the job's. */
export function retryAt(at, { data, priority } = {}) {
  // A value that the contract cannot hold would trap without a message.
  if (priority !== undefined && (priority | 0) !== priority) {
    throw new Error(`priority must be a whole number of 32 bits, not ${JSON.stringify(priority)}`);
  }
  at = instant(at < 0 ? 0 : at, 'at');
  return { tag: 'retry', val: { at, data: data === undefined ? undefined : JSON.stringify(data), priority } };
}

/** Another attempt this many seconds from now; `{ data, priority }` replace the job's. */
export const after = (seconds, changes) => retryAt(Date.now() + seconds * 1000, changes);

/** No more attempts; the job ends `failed`, with this message if it is given. */
export const giveUp = (message) => ({ tag: 'give-up', val: message === undefined ? undefined : String(message) });

/** Makes a component's `retry` from the author's functions. */
export function retryStrategy(plugin) {
  return {
    describe: () => describe(plugin),
    checkConfig: (config) => checkConfig(plugin, config),
    onFailure: (context, failed) =>
      guarded(() => {
        const config = begin(context);
        const verdict = plugin.onFailure(config, { queue: context.queue, now: Number(context.now) }, failed);
        if (verdict?.tag !== 'retry' && verdict?.tag !== 'give-up') {
          throw new Error(`onFailure returned ${JSON.stringify(verdict) ?? 'undefined'}: make it by after(), retryAt() or giveUp()`);
        }
        return verdict;
      }),
  };
}
