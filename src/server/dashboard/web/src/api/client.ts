// The only place that calls the server.

import { signal } from '@preact/signals';
import { encode } from '../lib/route';
import { token } from './credentials';

/** What a failed request means for the user. */
export type FailureKind =
  | 'no_answer'
  | 'not_signed_in'
  | 'forbidden'
  | 'not_found'
  | 'unsupported'
  | 'refused'
  | 'fault';

/** A request that did not succeed. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  constructor(
    readonly kind: FailureKind,
    message: string,
    readonly status = 0,
    readonly code = '',
    /** The field at fault, such as `constraints[2].rate.count`. */
    readonly field = '',
    readonly reasons: string[] = [],
  ) {
    super(message);
  }
}

/** Whether the latest request reached the server, and was accepted. */
export const connection = signal<'ok' | 'no_answer' | 'not_signed_in'>('ok');

/** Differences of the clocks below this are the travel of the answer. */
const SKEW_MS = 3000;
let skew = 0;

/** The time at the server, as its answers have it: the clock of a phone may be wrong. */
export function serverNow(): number {
  return Date.now() + skew;
}

function compareClocks(response: Response): void {
  const difference = Date.parse(response.headers.get('date') ?? '') - Date.now();
  skew = Math.abs(difference) > SKEW_MS ? difference : 0;
}

/** An answer: its value, its text as it came, and the version of the resource. */
export interface Answer<T> {
  value: T;
  text: string;
  etag: string | null;
}

/** What a request has in addition to its method and path. */
export interface Options {
  query?: URLSearchParams | Record<string, string | number | undefined>;
  /** A value, which is sent as JSON. */
  body?: unknown;
  /** JSON that is sent as it is. */
  raw?: string;
  /** Another media type of `raw`. */
  mediaType?: string;
  etag?: string | null;
  signal?: AbortSignal;
  key?: string;
}

/** A path below the console's own address, with encoded parts: path`v1/queues/${name}`. */
export function path(texts: TemplateStringsArray, ...parts: string[]): string {
  return texts.reduce(
    (all, text, i) => all + text + (i < parts.length ? encode(parts[i] ?? '') : ''),
    '',
  );
}

function address(to: string, query: Options['query']): string {
  const params = new URLSearchParams();
  const entries = query instanceof URLSearchParams ? [...query] : Object.entries(query ?? {});
  for (const [name, value] of entries)
    if (value !== undefined && value !== '') params.append(name, String(value));
  const text = params.toString();
  return `./${to}${text ? `?${text}` : ''}`;
}

function headers(options: Options): Headers {
  const made = new Headers({ accept: 'application/json', 'x-requested-with': 'console' });
  const bearer = token.peek();
  if (bearer) made.set('authorization', `Bearer ${bearer}`);
  if (options.body !== undefined || options.raw !== undefined) {
    made.set('content-type', options.mediaType ?? 'application/json');
  }
  if (options.etag) made.set('if-match', options.etag);
  if (options.key) made.set('idempotency-key', options.key);
  return made;
}

/** The response to a request, whatever its status. Its body is not read. */
export async function open(method: string, to: string, options: Options = {}): Promise<Response> {
  const body = options.raw ?? (options.body === undefined ? null : JSON.stringify(options.body));
  const init: RequestInit = { method, headers: headers(options), body, cache: 'no-store' };
  if (options.signal) init.signal = options.signal;
  try {
    const response = await fetch(address(to, options.query), init);
    compareClocks(response);
    return response;
  } catch (error) {
    if (options.signal?.aborted) throw error;
    connection.value = 'no_answer';
    throw new ApiError('no_answer', 'The server does not answer.');
  }
}

/** Sends a request and reads the answer. Everything but success is an `ApiError`. */
export async function send<T>(
  method: string,
  to: string,
  options: Options = {},
): Promise<Answer<T>> {
  const response = await open(method, to, options);
  const text = await response.text().catch(() => '');
  if (!response.ok) throw problem(response.status, text);
  connection.value = 'ok';
  try {
    const value = (text ? JSON.parse(text) : null) as T;
    return { value, text, etag: response.headers.get('etag') };
  } catch {
    throw new ApiError(
      'fault',
      'The answer is not JSON. A proxy may have replaced it.',
      response.status,
    );
  }
}

/** The error of an answer that is no success. */
export function problem(status: number, text: string): ApiError {
  const found = fields(text);
  const kind = kindOf(status);
  connection.value =
    kind === 'not_signed_in' ? 'not_signed_in' : kind === 'no_answer' ? 'no_answer' : 'ok';
  const message = found.detail || found.title || `The server answered with status ${status}.`;
  return new ApiError(kind, message, status, found.code, found.field, found.reasons);
}

function kindOf(status: number): FailureKind {
  if (status === 401) return 'not_signed_in';
  if (status === 403) return 'forbidden';
  if (status === 404) return 'not_found';
  if (status === 501 || status === 405) return 'unsupported';
  if (status === 502 || status === 504) return 'no_answer';
  return status >= 500 ? 'fault' : 'refused';
}

function fields(text: string) {
  const word = (value: unknown): string => (typeof value === 'string' ? value : '');
  let found: Record<string, unknown> = {};
  try {
    found = (JSON.parse(text) as Record<string, unknown> | null) ?? {};
  } catch {
    // A proxy's page, not a problem document.
  }
  const reasons = Array.isArray(found.reasons) ? found.reasons.map(String) : [];
  return {
    detail: word(found.detail),
    title: word(found.title),
    code: word(found.code),
    field: word(found.field),
    reasons,
  };
}

/** The value that a GET answers. */
export async function get<T>(
  to: string,
  query?: Options['query'],
  signal?: AbortSignal,
): Promise<T> {
  const options: Options = {};
  if (query) options.query = query;
  if (signal) options.signal = signal;
  return (await send<T>('GET', to, options)).value;
}

/** The value that a POST answers. */
export async function post<T>(to: string, body: unknown = undefined): Promise<T> {
  return (await send<T>('POST', to, body === undefined ? {} : { body })).value;
}

/** The value, or null where this server has no such route or the token may not use it. */
export async function optional<T>(work: Promise<T>): Promise<T | null> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof ApiError && ['forbidden', 'not_found', 'unsupported'].includes(error.kind))
      return null;
    throw error;
  }
}

/** All items of a list, page by page; at most 20 pages. */
export async function all<T>(
  to: string,
  name: string,
  query: Record<string, string> = {},
): Promise<T[]> {
  const items: T[] = [];
  let cursor = '';
  for (let page = 0; page < 20; page++) {
    const answer = await get<Record<string, unknown>>(to, { limit: 1000, ...query, cursor });
    items.push(...((answer[name] as T[] | undefined) ?? []));
    cursor = (answer.next_cursor as string | null | undefined) ?? '';
    if (!cursor) break;
  }
  return items;
}

/** A text for people about any error. */
export function message(error: unknown): string {
  if (error instanceof ApiError && error.reasons.length)
    return `${error.message} ${error.reasons.join('. ')}`;
  return error instanceof Error ? error.message : String(error);
}
