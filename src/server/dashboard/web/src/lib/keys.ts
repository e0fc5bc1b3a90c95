// Idempotency keys.

/** A random key. `crypto.randomUUID` exists only on pages that came encrypted, or from this machine. */
function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** Gives the same key for the same request, as long as no other one comes between. */
export function keyed(): (request: string) => string {
  let latest: { request: string; key: string } | null = null;
  return (request) => {
    if (latest?.request !== request) latest = { request, key: newKey() };
    return latest.key;
  };
}
