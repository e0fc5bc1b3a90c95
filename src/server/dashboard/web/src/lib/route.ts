// Addresses of views: `#/queues/NAME?by=tenant`. A malformed address is a page "not found".

/** A place in the console: the parts of its path, decoded, and its query. */
export interface Route {
  parts: string[];
  query: URLSearchParams;
}

/** The place that a hash names; null if it is malformed. */
export function parse(hash: string): Route | null {
  const [path = '', query = ''] = split(hash.replace(/^#\/?/, ''));
  try {
    const parts = path.split('/').filter(Boolean).map(decodeURIComponent);
    return { parts, query: new URLSearchParams(query) };
  } catch {
    return null;
  }
}

function split(text: string): [string, string] {
  const at = text.indexOf('?');
  return at < 0 ? [text, ''] : [text.slice(0, at), text.slice(at + 1)];
}

/** A value for one part of a path. Half of a surrogate pair becomes U+FFFD, as it cannot be encoded. */
export function encode(part: string): string {
  return encodeURIComponent(part.replace(/[\ud800-\udfff]/gu, '\ufffd'));
}

/** The address of a place. Parameters without a value are left out. */
export function href(
  parts: string[],
  query?: URLSearchParams | Record<string, string | undefined>,
) {
  const text = query instanceof URLSearchParams ? query.toString() : fromRecord(query ?? {});
  return `#/${parts.map(encode).join('/')}${text ? `?${text}` : ''}`;
}

function fromRecord(query: Record<string, string | undefined>): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) params.set(name, value);
  return params.toString();
}

/** The address of a job. */
export const jobHref = (type: string, id: string): string => href(['jobs', type, id]);

/** The address of a queue. */
export const queueHref = (queue: string): string => href(['queues', queue]);
