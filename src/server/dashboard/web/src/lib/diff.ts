// Settings: what differs between two of them, and the merge patch that leads from one to the other.

/** A JSON value. */
export type Json = string | number | boolean | null | Json[] | { [name: string]: Json };

/** A JSON object. */
export type JsonObject = { [name: string]: Json };

/** A setting that differs. Absent values are undefined. */
export interface Change {
  path: string;
  before: Json | undefined;
  after: Json | undefined;
}

/** Whether a value is an object and no list. */
export function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** Whether two values are the same JSON, whatever the order of names. */
export function same(a: Json | undefined, b: Json | undefined): boolean {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) {
    return a.length === b.length && a.every((item, i) => same(item, b[i]));
  }
  if (!isObject(a) || !isObject(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => same(a[name], b[name]));
}

/** The JSON merge patch (RFC 7396) that makes `after` of `before`. */
export function mergePatch(before: JsonObject, after: JsonObject): JsonObject {
  const patch: JsonObject = {};
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) {
    const [old, now] = [before[name], after[name]];
    if (same(old, now)) continue;
    if (now === undefined) patch[name] = null;
    else patch[name] = isObject(old) && isObject(now) ? mergePatch(old, now) : now;
  }
  return patch;
}

/** What differs, leaf by leaf; lists of objects with names are compared by name. */
export function changes(before: Json | undefined, after: Json | undefined, path = ''): Change[] {
  if (same(before, after)) return [];
  const [old, now] = [byName(before), byName(after)];
  if (!isObject(old) || !isObject(now)) return [{ path, before, after }];
  const names = new Set([...Object.keys(old), ...Object.keys(now)]);
  return [...names].flatMap((name) =>
    changes(old[name], now[name], path ? `${path}.${name}` : name),
  );
}

/** A list of objects that all have different names, as an object; every other value as it is. */
function byName(value: Json | undefined): Json | undefined {
  if (!Array.isArray(value) || value.length === 0) return value;
  const named: JsonObject = {};
  for (const item of value) {
    if (!isObject(item) || typeof item.name !== 'string' || item.name in named) return value;
    named[item.name] = item;
  }
  return named;
}

/** A value in one line. */
export function inline(value: Json | undefined): string {
  if (value === undefined || value === null) return 'default';
  return typeof value === 'string' ? value : JSON.stringify(value);
}
