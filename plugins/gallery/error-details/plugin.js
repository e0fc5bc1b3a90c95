// Decides by what the worker reports about a failure: a code in its details, or a part of its message. A
// rule gives up, or changes the data, the priority and the wait of the next attempt. The same rule as in
// src/lib.rs.
import { retryStrategy, retryAt, giveUp, dataOf, log } from './sdk/retry.js';

const isObject = (value) => typeof value === 'object' && value !== null && !Array.isArray(value);

export const retry = retryStrategy({
  about: 'Gives up, or changes the job, by what the worker reports about a failure.',
  needsData: true,

  check({ rules, backoff = {} }) {
    if (!Array.isArray(rules)) return [{ path: '', message: 'missing field `rules`' }];
    const bounds = rules.map((rule, place) => [`/rules/${place}/wait_seconds`, rule.wait_seconds, 2592000]);
    bounds.push(['/backoff/base_seconds', backoff.base_seconds, 86400]);
    bounds.push(['/backoff/max_seconds', backoff.max_seconds, 2592000]);
    const wrong = bounds.filter(([, seconds, most]) => !((seconds ?? 0) >= 0 && (seconds ?? 0) <= most));
    return wrong.map(([path, , most]) => ({ path, message: `must be 0 to ${most}` }));
  },

  onFailure({ field = 'code', rules, backoff = {} }, call, failed, last) {
    const code = codeOf(last.details, field);
    const matches = ({ code: own = code, text = '' }) => own === code && (last.message ?? '').includes(text);
    const { give_up: message, wait_seconds: wait, priority, set } = rules.find(matches) ?? {};
    if (message !== undefined) return giveUp(message);
    const millis = wait === undefined ? afterAttempt(failed.attempt, backoff) : Math.round(wait * 1000);
    // Not before the time that the worker or the target requested.
    return retryAt(Math.max(call.now + millis, last.notBefore ?? 0), { priority, data: changed(failed, set) });
  },
});

// The code in the details of a failure. One that is not a text counts as its JSON.
function codeOf(json, field) {
  const details = JSON.parse(json ?? 'null');
  if (!isObject(details) || !Object.hasOwn(details, field)) return undefined;
  return typeof details[field] === 'string' ? details[field] : JSON.stringify(details[field]);
}

// The job's data with the members that are set. Undefined, which keeps the data, if the rule sets none, or
// if the data is no object.
function changed(failed, members = {}) {
  if (Object.keys(members).length === 0) return undefined;
  const data = dataOf(failed) ?? {};
  if (isObject(data)) return { ...data, ...members };
  log.warn(`data of ${failed.id}: it is no object`);
  return undefined;
}

// The built-in backoff, in milliseconds.
function afterAttempt(attempt, { base_seconds: base = 2, max_seconds: most = 3600, jitter = 'full' }) {
  const whole = Math.round(Math.min(base * 2 ** Math.min(attempt - 1, 40), most) * 1000);
  if (jitter === 'none') return whole;
  return Math.max(Math.floor(Math.random() * (whole + 1)), Math.min(500, whole));
}
