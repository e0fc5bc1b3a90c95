/**
 * The state of the plugin in one queue. Changes are kept with the call's decisions, if it succeeds. At most 256 KiB in all keys
 * and values, where each key counts 32 bytes more. A key has 1 to 128 bytes, a value at most 16 KiB. From `expiresAt` on, a
 * value counts as deleted.
 */
export interface State {
  /** The text of a key; undefined if there is none. */
  get(key: string): string | undefined;
  /** Sets a text. Throws an error that says which bound it exceeds. */
  set(key: string, value: string, expiresAt?: number | Date): void;
  /** The JSON value of a key; undefined if there is none. */
  load(key: string): any;
  /** Sets a JSON value. Throws an error that says which bound it exceeds. */
  save(key: string, value: unknown, expiresAt?: number | Date): void;
  delete(key: string): void;
  /** The keys that begin with `prefix`, by default all, sorted. */
  keys(prefix?: string): string[];
}

/**
 * The key for one value of an attribute: `kind:value`. A value of more than 100 bytes is replaced by its hash of 64 bits,
 * because a key has at most 128 bytes. `kind` has at most 20 bytes.
 */
export function stateKey(kind: string, value: string): string;
