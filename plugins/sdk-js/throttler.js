// Throttlers for tidegate, in JavaScript:
//
//   import { throttler, run, hold } from './sdk/throttler.js';
//   export const throttle = throttler({ about, check(config), decide(config, round, candidates) });

import * as hostRunning from 'tidegate:plugin/running@0.2.0';
import * as hostWaiting from 'tidegate:plugin/waiting@0.2.0';
import { candidates } from './candidates.js';
import {
  asJobs,
  begin,
  checkConfig,
  clock,
  dataOf,
  describe,
  failed,
  instant,
  log,
  metrics,
  string,
  text,
  whole,
} from './common.js';
import { state, stateKey } from './state.js';

export { clock, dataOf, log, metrics, stateKey };

class Decision {
  constructor(action, reason) {
    this.action = action;
    this.reason = typeof reason === 'string' || reason === undefined || reason === null ? reason : String(reason);
  }
}

const HOLD = { tag: 'hold', val: undefined };
// Every call of run() returns the same object, and so does hold() without a reason.
const RUN = Object.freeze(new Decision({ tag: 'run' }));
const HOLD_ALONE = Object.freeze(new Decision(HOLD));
const DROP = { tag: 'drop' };

/** The job starts now. */
export const run = () => RUN;
/** The job waits, and is offered again at the next change of the queue. */
export const hold = (reason) => (reason === undefined ? HOLD_ALONE : new Decision(HOLD, reason));
/** The job waits, and is offered again at the next change of the queue, at the latest at `until`. */
export const holdUntil = (until, reason) => new Decision({ tag: 'hold', val: instant(until, 'until') }, reason);
/** The job is due at `at`: after now, and within 366 days. */
export const reschedule = (at, reason) => new Decision({ tag: 'reschedule', val: instant(at, 'at') }, reason);
/** The job ends `dropped`. */
export const drop = (reason) => new Decision(DROP, reason);

const JOB_TYPE = { tag: 'job-type' };
const PRIORITY = { tag: 'priority' };

// 'job-type', 'priority', or an attribute: { attribute: 'region' }.
function dimension(by) {
  if (by === 'job-type') return JOB_TYPE;
  if (by === 'priority') return PRIORITY;
  if (typeof by?.attribute === 'string') return { tag: 'attribute', val: by.attribute };
  throw new TypeError(`the running set is divided by 'job-type', 'priority' or { attribute: name }, not by ${text(by)}`);
}

// The largest number that the runtime passes as an unsigned one of 32 bits.
const MOST = 2 ** 31 - 1;

const running = {
  count: () => hostRunning.count(),
  weight: () => hostRunning.weight(),
  groups: (by) => hostRunning.groups(dimension(by)),
  inGroup: (by, value) => hostRunning.inGroup(dimension(by), String(value)),
  weights(by) {
    const weights = new Map();
    for (const { value, weight } of hostRunning.groups(dimension(by))) weights.set(value, weight);
    return weights;
  },
  page: (offset, limit) => asJobs(hostRunning.page(whole(offset, 'offset', 0, MOST), whole(limit, 'limit', 0, MOST))),
};

const waiting = {
  groups: (by) => hostWaiting.groups(string(by, 'by')),
  others: () => hostWaiting.others(),
  countedAt: () => hostWaiting.countedAt(),
};

// A malformed answer would trap without a message, so check it first.
function checked(answer, count) {
  const { decisions, more } = Array.isArray(answer) ? { decisions: answer, more: true } : answer ?? {};
  if (!Array.isArray(decisions)) throw new TypeError('decide must return a list of decisions, or { decisions, more }');
  if (decisions.length !== count) throw new Error(`decide returned ${decisions.length} decisions on ${count} candidates`);
  for (let index = 0; index < count; index++) {
    if (!(decisions[index] instanceof Decision)) {
      throw new TypeError(`decision ${index} is ${text(decisions[index])}: make it by run(), hold(), holdUntil(), reschedule() or drop()`);
    }
  }
  return { decisions, more: Boolean(more ?? true) };
}

/** Makes a component's `throttle` from the author's functions. */
export function throttler(plugin) {
  return {
    describe: () => describe(plugin),
    checkConfig: (config) => checkConfig(plugin, config),
    decide(context, { concurrency, room, ended }, records) {
      try {
        const config = begin(context);
        // The host passes records only if the plugin needs earlier attempts.
        const jobs = records.length > 0 ? asJobs(records) : candidates();
        const round = { queue: context.queue, now: context.now, concurrency, room, ended: asJobs(ended), running, waiting, state };
        // The author may change the list.
        const count = jobs.length;
        return checked(plugin.decide(config, round, jobs), count);
      } catch (error) {
        throw failed(error);
      }
    },
  };
}
