// Shared by throttlers and retry strategies. An author imports throttler.js or retry.js.

import { write } from 'tidegate:plugin/log@0.1.0';
import { data } from 'tidegate:plugin/jobs@0.1.0';

function text(value) {
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

// The engine has no console of its own.
globalThis.console = { log: line('info'), debug: line('debug'), info: line('info'), warn: line('warn'), error: line('error') };

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
let stream = 0n;

// splitmix64, as in the Rust SDK.
function draw() {
  stream = (stream + 0x9e3779b97f4a7c15n) & MASK;
  let mixed = ((stream ^ (stream >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  mixed = ((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return mixed ^ (mixed >> 31n);
}

globalThis.Math.random = () => Number(draw() >> 11n) / 2 ** 53;

/** Sets the time and the random seed of a call, and reads its configuration. */
export function begin(context) {
  now = Number(context.now);
  stream = BigInt.asUintN(64, BigInt(context.seed));
  return JSON.parse(context.config);
}

/** The value of a job's attribute; undefined if it has none of that name. */
export function attribute(job, name) {
  return job.attributes.find((attribute) => attribute.name === name)?.value;
}

/** The data of a candidate, or of the failed job; undefined if it has none. Needs `needsData`. */
export function dataOf(job) {
  const json = data(job.id);
  return json === undefined || json === null ? undefined : JSON.parse(json);
}

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

/** Calls the author's function. An exception is logged and becomes the call's error. */
export function guarded(call) {
  try {
    return call();
  } catch (error) {
    console.error(error);
    throw new Error(error instanceof Error ? error.message : String(error));
  }
}

/** An instant in the form of the contract: whole milliseconds since 1970. */
export function instant(at, what) {
  const millis = at instanceof Date ? at.getTime() : at;
  if (typeof millis !== 'number' || !Number.isFinite(millis) || millis < 0) {
    throw new Error(`${what} must be a Date or milliseconds since 1970, not ${text(at)}`);
  }
  return Math.floor(millis);
}
