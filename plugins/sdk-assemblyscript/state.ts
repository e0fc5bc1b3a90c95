// The state of a plugin in one queue: `round.state` of a throttler, `call.state` of a retry strategy.

import { RESULT, Utf8, readOptionalText, readText } from "./abi";
import { Json } from "./json";

@external("tidegate:plugin/state@0.2.0", "get")
declare function stateGet(key: usize, bytes: usize, result: usize): void;

@external("tidegate:plugin/state@0.2.0", "set")
declare function stateSet(
  key: usize, bytes: usize, value: usize, valueBytes: usize, expires: i32, expiresAt: u64,
  result: usize,
): void;

@external("tidegate:plugin/state@0.2.0", "delete")
declare function stateDelete(key: usize, bytes: usize): void;

@external("tidegate:plugin/state@0.2.0", "keys")
declare function stateKeys(prefix: usize, bytes: usize, result: usize): void;

/** The state of the plugin in one queue. Its changes are committed if the call succeeds. */
export class State {
  /** The value of a key; null if it has none. */
  get(key: string): string | null {
    const utf8 = new Utf8(key);
    stateGet(utf8.start, utf8.length, RESULT);
    return readOptionalText(RESULT);
  }
  /** The value of a key that has JSON text; missing if it has none. */
  load(key: string): Json {
    const text = this.get(key);
    return text === null ? new Json() : Json.parse(text);
  }
  /**
   * Sets the value of a key. From `expiresAt` on it counts as deleted; 0 means never. Returns why
   * it cannot be set, or null if it was set.
   */
  set(key: string, value: string, expiresAt: u64 = 0): string | null {
    const utf8 = new Utf8(key);
    const content = new Utf8(value);
    stateSet(
      utf8.start, utf8.length, content.start, content.length, i32(expiresAt != 0), expiresAt,
      RESULT,
    );
    if (load<u8>(RESULT) == 0) return null;
    const error = load<u8>(RESULT, 1);
    const why = error == 0 ? "the key is empty, or has more than 128 bytes"
      : error == 1 ? "the value has more than 16 KiB"
      : "the state would have more than 256 KiB";
    return `state ${key.substring(0, 128)}: ${why}`;
  }
  /** Sets a key to JSON text, as `set` does. */
  save(key: string, value: Json, expiresAt: u64 = 0): string | null {
    return this.set(key, value.toString(), expiresAt);
  }
  delete(key: string): void {
    const utf8 = new Utf8(key);
    stateDelete(utf8.start, utf8.length);
  }
  /** The keys that begin with `prefix`, sorted. */
  keys(prefix: string = ""): string[] {
    const utf8 = new Utf8(prefix);
    stateKeys(utf8.start, utf8.length, RESULT);
    const start: usize = load<u32>(RESULT);
    const keys = new Array<string>(load<u32>(RESULT, 4));
    for (let index = 0; index < keys.length; index++) keys[index] = readText(start + index * 8);
    return keys;
  }
}
