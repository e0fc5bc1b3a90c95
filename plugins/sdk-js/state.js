// The state of a plugin in one queue: `round.state` of a throttler, `call.state` of a retry strategy.

import * as hostState from 'tidegate:plugin/state@0.2.0';
import { instant, string } from './common.js';

const REFUSED = {
  'invalid-key': 'the key must have 1 to 128 bytes',
  'value-too-long': 'the value has more than 16 KiB',
  full: 'the state would have more than 256 KiB',
};

const MASK = (1n << 64n) - 1n;

/** The key for one value of an attribute: `kind:value`. A long value is replaced by its hash, as in the Rust SDK. */
export function stateKey(kind, value) {
  // A unit of a string has at most three bytes in UTF-8.
  if (value.length <= 33) return `${kind}:${value}`;
  const bytes = unescape(encodeURIComponent(value));
  if (bytes.length <= 100) return `${kind}:${value}`;
  // FNV-1a.
  let hash = 0xcbf29ce484222325n;
  for (const byte of bytes) hash = ((hash ^ BigInt(byte.charCodeAt(0))) * 0x100000001b3n) & MASK;
  return `${kind}#${hash.toString(16).padStart(16, '0')}`;
}

export const state = {
  get: (key) => hostState.get(string(key, 'key')) ?? undefined,
  set(key, value, expiresAt) {
    const until = expiresAt === undefined || expiresAt === null ? undefined : instant(expiresAt, 'expiresAt');
    try {
      hostState.set(string(key, 'key'), string(value, 'value'), until);
    } catch (error) {
      const why = REFUSED[error.payload];
      throw why === undefined ? error : new Error(`state ${JSON.stringify(key)}: ${why}`);
    }
  },
  load(key) {
    const json = state.get(key);
    return json === undefined ? undefined : JSON.parse(json);
  },
  save: (key, value, expiresAt) => state.set(key, JSON.stringify(value), expiresAt),
  delete: (key) => hostState['delete'](string(key, 'key')),
  keys: (prefix = '') => hostState.keys(string(prefix, 'prefix')),
};
