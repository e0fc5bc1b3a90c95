// What throttlers and retry strategies share. An author imports throttler.js or retry.js.
//
// The runtime converts the arguments of a call before the author's code runs, and traps without a
// message on a value that the contract cannot hold. Therefore this code changes the arguments as
// little as possible, and checks everything that it passes to the host.

import { write } from 'tidegate:plugin/log@0.2.0';
import { data } from 'tidegate:plugin/jobs@0.2.0';
import * as hostClock from 'tidegate:plugin/clock@0.2.0';
import * as hostMetrics from 'tidegate:plugin/metrics@0.2.0';

/** Any value as text, for messages. */
export function text(value) {
  if (typeof value === 'string') return value;
  // The stack of an error has only the place, not the message.
  if (value instanceof Error) return `${value}\n${value.stack ?? ''}`.trimEnd();
  try {
    return JSON.stringify(value) ?? String(value);
  } catch {
    // A big integer or a cycle: a line in the log must not fail the call.
    return String(value);
  }
}
const line = (level) => (...values) => write(level, values.map(text).join(' '));

/** Writes lines to the log. */
export const log = { debug: line('debug'), info: line('info'), warn: line('warn'), error: line('error') };

// The engine has no console of its own.
globalThis.console = { log: log.info, ...log };

// The engine's own clock traps without a message, and its own random numbers repeat in every call.
let now = 0;
globalThis.Date = class extends Date {
  constructor(...given) {
    super(...(given.length === 0 ? [now] : given));
  }
  static now() {
    return now;
  }
};

const MASK = (1n << 64n) - 1n;
let seed = 0;
// The state of the random numbers. A call that draws none does not compute it.
let stream;

// splitmix64, as in the Rust SDK.
function draw() {
  stream = ((stream ?? BigInt.asUintN(64, BigInt(seed))) + 0x9e3779b97f4a7c15n) & MASK;
  let mixed = ((stream ^ (stream >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  mixed = ((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return mixed ^ (mixed >> 31n);
}

globalThis.Math.random = () => Number(draw() >> 11n) / 2 ** 53;

/** Sets the time and the random seed of a call, and reads its configuration. */
export function begin(context) {
  now = context.now;
  seed = context.seed;
  stream = undefined;
  return JSON.parse(context.config);
}

// The runtime builds each record of a call field by field. The engine reuses the layout of an object
// with the same fields, but frees a layout that no object has. An object with each beginning of a
// record's fields keeps all of them: a call with many candidates takes 7 % less time.
function layouts(fields) {
  const names = fields.split(' ');
  return names.map((_, last) => Object.fromEntries(names.slice(0, last + 1).map((name) => [name, null])));
}
export const kept = [
  'name value',
  'id jobType priority weight attributes attempt attempts createdAt runAt expiresAt deadlineAt targetHost replayOf correlationKey earlier',
  'id jobType priority weight attributes targetHost attempt startedAt endedAt succeeded reason message status details notBefore',
  'id jobType priority weight critical attributes grantedAt',
  'attempt reason message status details startedAt endedAt notBefore',
].map(layouts);

/** The prototype of the jobs, the running jobs and the ended attempts of a call. */
class Job {
  /** The value of an attribute; undefined if the job has none of that name. */
  attribute(name) {
    const { attributes } = this;
    for (let index = 0; index < attributes.length; index++) {
      if (attributes[index].name === name) return attributes[index].value;
    }
    return undefined;
  }
}

/** Gives records of the contract the methods of a job. */
export function asJobs(records) {
  for (let index = 0; index < records.length; index++) Object.setPrototypeOf(records[index], Job.prototype);
  return records;
}

/** The data of a candidate, or of the failed job; undefined if it has none. Needs `needsData`. */
export function dataOf(job) {
  const json = data(string(job.id, 'id'));
  return json === null ? undefined : JSON.parse(json);
}

/** The clock. It does not advance during a call. */
export const clock = {
  /** The time of the decision, as `Date.now()`; 0 in `check`. */
  now: () => now,
  /** What a zone such as 'Europe/Berlin' shows at an instant, by default now. */
  local: (zone, at = now) => hostClock.local(string(zone, 'zone'), instant(at, 'at')),
  /** The instant at which a zone shows a time, in milliseconds since 1970. */
  instant: (zone, time) => hostClock.instant(string(zone, 'zone'), localTime(time)),
};

const localTime = ({ year, month, day, hour = 0, minute = 0, second = 0, millisecond = 0 }) => ({
  year: whole(year, 'year', -9999, 9999),
  month: whole(month, 'month', 1, 12),
  day: whole(day, 'day', 1, 31),
  hour: whole(hour, 'hour', 0, 23),
  minute: whole(minute, 'minute', 0, 59),
  second: whole(second, 'second', 0, 59),
  millisecond: whole(millisecond, 'millisecond', 0, 999),
});

/** Metrics of the plugin's own, which `GET /metrics` has. */
export const metrics = {
  /** Adds to a counter. */
  add: (name, label = '', amount = 1) => hostMetrics.add(string(name, 'name'), string(label, 'label'), number(amount, 'amount')),
  /** Sets a gauge. */
  set: (name, label, value) => hostMetrics.set(string(name, 'name'), string(label, 'label'), number(value, 'value')),
};

/** The description of the plugin, from the author's declarations. */
export function describe(plugin) {
  const schema = plugin.configSchema;
  return {
    about: plugin.about ?? '',
    configSchema: schema === undefined || typeof schema === 'string' ? schema : JSON.stringify(schema),
    stateVersion: plugin.stateVersion ?? 0,
    groupBy: plugin.groupBy ?? [],
    needsRunningJobs: plugin.needsRunningJobs ?? false,
    needsData: plugin.needsData ?? false,
    needsEnded: plugin.needsEnded ?? false,
    needsEarlier: plugin.needsEarlier ?? false,
    waitingBy: plugin.waitingBy ?? [],
  };
}

/** The problems of a configuration, from the author's `check`. */
export function checkConfig(plugin, json) {
  let config;
  try {
    config = JSON.parse(json);
  } catch (error) {
    return [{ path: '', message: String(error) }];
  }
  try {
    const problems = plugin.check?.(config) ?? [];
    return problems.map(({ path, message }) => ({ path: String(path ?? ''), message: String(message) }));
  } catch (error) {
    return [{ path: '', message: String(error) }];
  }
}

/** Logs an exception of the author's code, and returns it as the call's error. */
export function failed(error) {
  console.error(error);
  return new Error(error instanceof Error ? error.message : String(error));
}

/** An instant in the form of the contract: whole milliseconds since 1970. */
export function instant(at, what) {
  const millis = at instanceof Date ? at.getTime() : at;
  if (typeof millis !== 'number' || !Number.isFinite(millis) || millis < 0) {
    throw new TypeError(`${what} must be a Date or milliseconds since 1970, not ${shown(at)}`);
  }
  return Math.floor(millis);
}

/** A string in the form of the contract. */
export function string(value, what) {
  if (typeof value !== 'string') throw new TypeError(`${what} must be a string, not ${shown(value)}`);
  return value;
}

/** A whole number in the form of the contract. */
export function whole(value, what, least, most, range = `${least} to ${most}`) {
  if (!Number.isInteger(value) || value < least || value > most) {
    throw new RangeError(`${what} must be a whole number of ${range}, not ${shown(value)}`);
  }
  return value;
}

// A value in a message: a string with quotes, and numbers that JSON does not have.
function shown(value) {
  if (typeof value === 'string') return JSON.stringify(value);
  return typeof value === 'number' ? String(value) : text(value);
}

/** A number in the form of the contract. */
export function number(value, what) {
  if (typeof value !== 'number') throw new TypeError(`${what} must be a number, not ${shown(value)}`);
  return value;
}
