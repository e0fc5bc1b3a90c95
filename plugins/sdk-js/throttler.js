// Throttlers for tidegate, in JavaScript:
//
//   import { throttler, run, hold } from './sdk/throttler.js';
//   export const throttle = throttler({ about, check(config), decide(config, round, candidates) });

import * as running from 'tidegate:plugin/running@0.1.0';
import * as state from 'tidegate:plugin/state@0.1.0';
import { attribute, begin, checkConfig, dataOf, describe, guarded, instant } from './common.js';

export { attribute, dataOf };

const decision = (tag, val, reason) => ({ action: val === undefined && tag !== 'hold' ? { tag } : { tag, val }, reason });

/** The job starts now. */
export const run = () => decision('run');
/** The job waits, and is offered again at the next change of the queue. */
export const hold = (reason) => decision('hold', undefined, reason);
/** The job waits, and is offered again at the next change of the queue, at the latest at `until`. */
export const holdUntil = (until, reason) => decision('hold', instant(until, 'until'), reason);
/** The job is due at `at`: after now, and within 366 days. */
export const reschedule = (at, reason) => decision('reschedule', instant(at, 'at'), reason);
/** The job ends `dropped`. */
export const drop = (reason) => decision('drop', undefined, reason);

// 'job-type', 'priority', or an attribute: { attribute: 'region' }.
function dimension(by) {
  if (by === 'job-type' || by === 'priority') return { tag: by };
  if (typeof by?.attribute === 'string') return { tag: 'attribute', val: by.attribute };
  throw new Error(`the running set is divided by 'job-type', 'priority' or { attribute: name }, not by ${JSON.stringify(by)}`);
}

const group = ({ value, count, weight }) => ({ value, count, weight: Number(weight) });

const theRunning = {
  count: () => running.count(),
  weight: () => Number(running.weight()),
  groups: (by) => running.groups(dimension(by)).map(group),
  inGroup: (by, value) => group(running.inGroup(dimension(by), value)),
  weights: (by) => new Map(running.groups(dimension(by)).map(({ value, weight }) => [value, Number(weight)])),
  page: (offset, limit) => running.page(offset, limit),
};

const theState = {
  load(key) {
    const json = state.get(key);
    return json === undefined || json === null ? undefined : JSON.parse(json);
  },
  save: (key, value) => state.set(key, JSON.stringify(value)),
  delete: (key) => state.delete_ ? state.delete_(key) : state['delete'](key),
  keys: () => state.keys(),
};

// A malformed answer would trap without a message, so check it first.
function checked(answer, count) {
  const { decisions, more } = Array.isArray(answer) ? { decisions: answer, more: true } : answer ?? {};
  if (!Array.isArray(decisions)) throw new Error('decide must return a list of decisions, or { decisions, more }');
  if (decisions.length !== count) throw new Error(`decide returned ${decisions.length} decisions on ${count} candidates`);
  decisions.forEach((made, index) => {
    if (!['run', 'hold', 'reschedule', 'drop'].includes(made?.action?.tag)) {
      throw new Error(`decision ${index} is ${JSON.stringify(made) ?? 'undefined'}: make it by run(), hold(), holdUntil(), reschedule() or drop()`);
    }
    if (made.reason !== undefined && typeof made.reason !== 'string') made.reason = String(made.reason);
  });
  return { decisions, more: Boolean(more ?? true) };
}

/** Makes a component's `throttle` from the author's functions. */
export function throttler(plugin) {
  return {
    describe: () => describe(plugin),
    checkConfig: (config) => checkConfig(plugin, config),
    decide: (context, round, candidates) =>
      guarded(() => {
        const config = begin(context);
        const given = {
          queue: context.queue,
          now: Number(context.now),
          concurrency: round.concurrency ?? undefined,
          room: round.room,
          ended: round.ended,
          running: theRunning,
          state: theState,
        };
        return checked(plugin.decide(config, given, candidates), candidates.length);
      }),
  };
}
