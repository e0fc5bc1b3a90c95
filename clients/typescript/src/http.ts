/**
 * Requests by `fetch`, and the rule for repeats.
 *
 * A request is repeated only if its caller marks it as repeatable. Repeats are bounded by number and
 * by time, and wait with jitter, or as long as `Retry-After` says.
 */

import {
  type ProblemDocument,
  ProblemError,
  problem,
  TidegateError,
  UnexpectedAnswerError,
  UnreachableError,
} from "./errors.js";
import { currentTraceparent } from "./trace.js";

export const VERSION = "0.1.0";
const MAX_ANSWER_BYTES = 2 ** 30;
const MIN_BACKOFF = 0.1;
const MAX_BACKOFF = 10;
const MAX_RETRY_AFTER = 60;

/** How often and how long a repeatable request is repeated. */
export interface RetryPolicy {
  /** At most this many repeats (default 5); 0 repeats nothing. */
  readonly repeats?: number;
  /** No repeat begins later than this many seconds after the first try (default 30). */
  readonly seconds?: number;
}

/** The options of a client. */
export interface ClientOptions {
  /** The server's URL (default: `TIDEGATE_URL`, or `http://127.0.0.1:8080`). */
  readonly url?: string;
  /** The access token (default: `TIDEGATE_TOKEN`). */
  readonly token?: string;
  /** Seconds for the answer to a request, in addition to its own wait (default 30). */
  readonly timeout?: number;
  readonly retries?: RetryPolicy;
  /** The W3C trace context of each request (default: that of the job whose handler runs). */
  readonly traceparent?: () => string | undefined;
  /** Another `fetch`, for example with a proxy. */
  readonly fetch?: typeof fetch;
}

/** A query parameter; undefined and null leave it out. */
export type QueryValue = string | number | boolean | null | undefined;

/** One request. */
export interface RequestOptions {
  readonly query?: Readonly<Record<string, QueryValue>> | undefined;
  /** Sent as JSON. */
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>> | undefined;
  /** Seconds that the request makes the server wait. */
  readonly wait?: number;
  /** Seconds for the answer, in addition to `wait` (default: those of the client). */
  readonly timeout?: number;
  /** Whether a repeat is harmless (default: GET, PUT, DELETE, and with an `Idempotency-Key`). */
  readonly repeatable?: boolean;
  readonly signal?: AbortSignal;
}

/** An answer with a status below 300. */
export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
}

/** Returns the answer's JSON value, null if it is empty. */
export function json(answer: Answer): unknown {
  if (answer.text === "") return null;
  try {
    return JSON.parse(answer.text);
  } catch (cause) {
    throw new UnexpectedAnswerError("the answer is not JSON", { cause });
  }
}

/** Returns the seconds after the failed try number `tries`, from 1: doubled, half of it random. */
export function backoff(tries: number, least = MIN_BACKOFF, most = MAX_BACKOFF): number {
  const span = Math.min(most, least * 2 ** Math.min(tries - 1, 30));
  return span * (0.5 + Math.random() / 2);
}

/** Resolves after `seconds`, or as soon as `signal` is aborted. */
export function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) {
      resolve();
      return;
    }
    const end = () => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, Math.min(seconds * 1000, 2 ** 31 - 1));
    signal?.addEventListener("abort", end, { once: true });
  });
}

/** Returns `/v1/...` with every segment percent-encoded. */
export function path(...segments: string[]): string {
  return `/v1/${segments.map(encodeURIComponent).join("/")}`;
}

/** The monotonic time in seconds. */
export function clock(): number {
  return performance.now() / 1000;
}

function environment(name: string): string | undefined {
  return (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env?.[
    name
  ];
}

/** The requests to one server. */
export class Transport {
  readonly url: string;
  readonly #prefix: string;
  readonly #token: string | undefined;
  /** Seconds for the answer to a request, in addition to its own wait. */
  readonly timeout: number;
  readonly #repeats: number;
  readonly #repeatSeconds: number;
  readonly #traceparent: () => string | undefined;
  readonly #fetch: typeof fetch;

  constructor(options: ClientOptions) {
    const text = options.url ?? environment("TIDEGATE_URL") ?? "http://127.0.0.1:8080";
    this.url = text.includes("://") ? text : `http://${text}`;
    const parsed = new URL(this.url);
    if (!/^https?:$/.test(parsed.protocol)) {
      throw new TypeError(`an http:// or https:// URL is expected, not ${text}`);
    }
    if (parsed.username || parsed.search || parsed.hash) {
      throw new TypeError("the URL must have no credentials, query or fragment");
    }
    this.#prefix = this.url.replace(/\/+$/, "");
    this.#token = options.token ?? environment("TIDEGATE_TOKEN");
    this.timeout = options.timeout ?? 30;
    this.#repeats = options.retries?.repeats ?? 5;
    this.#repeatSeconds = options.retries?.seconds ?? 30;
    this.#traceparent = options.traceparent ?? currentTraceparent;
    this.#fetch = options.fetch ?? ((input, init) => globalThis.fetch(input, init));
  }

  /** Sends a request, and repeats it as the policy says. */
  async request(method: string, target: string, options: RequestOptions = {}): Promise<Answer> {
    const began = clock();
    const hasKey = Object.keys(options.headers ?? {}).some((name) =>
      /^idempotency-key$/i.test(name),
    );
    const repeatable = options.repeatable ?? (["GET", "PUT", "DELETE"].includes(method) || hasKey);
    for (let tries = 1; ; tries++) {
      try {
        return await this.send(method, target, options);
      } catch (error) {
        if (!repeatable || !isTransient(error) || tries > this.#repeats) throw error;
        let wait = backoff(tries);
        if (error instanceof ProblemError && error.retryAfter !== undefined) {
          wait = Math.min(error.retryAfter, MAX_RETRY_AFTER) + wait / 10;
        }
        if (clock() + wait - began > this.#repeatSeconds) throw error;
        await pause(wait, options.signal);
      }
    }
  }

  /**
   * Sends a request once.
   *
   * @throws {ProblemError} for a status from 300 on.
   * @throws {UnreachableError} if no whole answer came.
   */
  async send(method: string, target: string, options: RequestOptions = {}): Promise<Answer> {
    const response = await this.open(method, target, options, "application/json");
    let text: string;
    try {
      if (Number(response.headers.get("content-length")) > MAX_ANSWER_BYTES) {
        await response.body?.cancel();
        throw new UnexpectedAnswerError("the answer has more than 1 GiB");
      }
      text = await response.text();
    } catch (cause) {
      if (cause instanceof UnexpectedAnswerError) throw cause;
      throw new UnreachableError(`${this.url} broke its answer: ${reason(cause)}`, { cause });
    }
    const answer = { status: response.status, headers: response.headers, text };
    if (response.status < 300) return answer;
    throw problemOf(answer);
  }

  /** Sends a request and returns its answer as soon as its head has come, whatever the status. */
  async open(
    method: string,
    target: string,
    options: RequestOptions,
    accept: string,
    timeout: number | undefined = (options.timeout ?? this.timeout) + (options.wait ?? 0),
  ): Promise<Response> {
    const headers: Record<string, string> = { accept };
    if (this.#token) headers.authorization = `Bearer ${this.#token}`;
    const init: RequestInit = { method, headers, redirect: "manual" };
    if (options.body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = JSON.stringify(options.body);
    }
    const trace = this.#traceparent();
    if (trace !== undefined) headers.traceparent = trace;
    if (options.headers) Object.assign(headers, options.headers);
    const signals = options.signal ? [options.signal] : [];
    if (timeout !== undefined) signals.push(AbortSignal.timeout(Math.ceil(timeout * 1000)));
    if (signals.length > 0) init.signal = AbortSignal.any(signals);
    const address = this.#prefix + target + (options.query ? queryOf(options.query) : "");
    try {
      return await this.#fetch(address, init);
    } catch (cause) {
      throw new UnreachableError(`no answer from ${this.url}: ${reason(cause)}`, { cause });
    }
  }
}

/** Whether the same request may succeed later. */
export function isTransient(error: unknown): boolean {
  return error instanceof TidegateError && error.retryable;
}

/** The error for an answer with a status from 300 on. */
export function problemOf(answer: Answer): ProblemError {
  let document: unknown;
  try {
    document = JSON.parse(answer.text);
  } catch {
    document = undefined;
  }
  const isProblem = typeof document === "object" && document !== null && "title" in document;
  const error = problem(
    answer.status,
    isProblem
      ? (document as ProblemDocument)
      : {
          title: `HTTP ${answer.status}`,
          detail: "the answer is not a problem document, so it may not be tidegate's",
        },
  );
  const retryAfter = answer.headers.get("retry-after");
  if (retryAfter !== null && Number.isFinite(Number(retryAfter))) {
    error.retryAfter = Math.max(0, Number(retryAfter));
  }
  error.requestId = answer.headers.get("x-request-id") ?? undefined;
  return error;
}

function queryOf(query: Readonly<Record<string, QueryValue>>): string {
  const found = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null) found.append(name, String(value));
  }
  const text = found.toString();
  return text === "" ? "" : `?${text}`;
}

function reason(error: unknown): string {
  let inner: unknown = error;
  while (inner instanceof Error && inner.cause !== undefined) inner = inner.cause;
  return inner instanceof Error ? inner.message || inner.name : String(inner);
}
