/**
 * Push handlers: what a type's `target` URL serves, wherever there is `Request` and `Response`.
 *
 * The signature of every request is checked. A handler that returns {@link LATER}, or that is
 * registered with `background: true`, answers 202 and reports to the callback when it has ended.
 */

import { cut, JobContext, type RawJob, type Shown } from "./context.js";
import { ConflictError, NotFoundError, TidegateError } from "./errors.js";
import { Handler, type HandlerFunction, LATER, type Outcome, snoozedUntil } from "./handler.js";
import { clock, isTransient, json, pause, Transport } from "./http.js";
import type { JobType } from "./schema.js";
import type { Schemas } from "./types.js";

const DEFAULT_TOLERANCE_SECONDS = 300;
const MAX_BODY_BYTES = 8 << 20;
const MAX_SIGNATURES = 16;
// How often a background handler learns whether its job was cancelled.
const BEAT_SECONDS = 10;
const FLUSH_SECONDS = 1;
// How long a report waits for the heartbeat that is under way.
const MAX_BEAT_WAIT_SECONDS = 5;
const NOT_RETRYABLE = 489;

/** The request is not a push of the server: its signature, its time or its body is wrong. */
export class RefusedError extends TidegateError {}

/** What a check of a signature may be given. */
export interface VerifyOptions {
  /** Milliseconds since the Unix epoch (default: now). */
  readonly now?: number;
  /** Default 300. */
  readonly toleranceSeconds?: number;
}

/** One secret of a type's `signing_secret`, or several during a rotation. */
export type Secrets = string | readonly string[];

/**
 * Checks a signature, as Standard Webhooks describe.
 *
 * @throws {RefusedError} if the signature is wrong, or its time further from now than the tolerance.
 */
export async function verify(
  secrets: Secrets,
  headers: Headers | Readonly<Record<string, string>>,
  body: string | Uint8Array,
  options: VerifyOptions = {},
): Promise<void> {
  const found = new Headers(headers as HeadersInit);
  const id = found.get("webhook-id") ?? "";
  const timestamp = found.get("webhook-timestamp") ?? "";
  if (!/^\d{1,15}$/.test(timestamp)) {
    throw new RefusedError("webhook-timestamp is missing, or is not a number of seconds");
  }
  const age = Math.abs((options.now ?? Date.now()) / 1000 - Number(timestamp));
  if (age > (options.toleranceSeconds ?? DEFAULT_TOLERANCE_SECONDS)) {
    throw new RefusedError("webhook-timestamp is too far from the present");
  }
  const encoder = new TextEncoder();
  const head = encoder.encode(`${id}.${timestamp}.`);
  const bytes = typeof body === "string" ? encoder.encode(body) : body;
  const signed = new Uint8Array(head.length + bytes.length);
  signed.set(head);
  signed.set(bytes, head.length);
  const given = (found.get("webhook-signature") ?? "").split(" ").slice(0, MAX_SIGNATURES);
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  for (const secret of keysOf(secrets)) {
    const key = await crypto.subtle.importKey("raw", secret, algorithm, false, ["verify"]);
    for (const signature of given) {
      const wanted = signature.startsWith("v1,") ? fromBase64(signature.slice(3)) : undefined;
      if (wanted && (await crypto.subtle.verify("HMAC", key, wanted, signed))) return;
    }
  }
  throw new RefusedError("no signature matches a secret");
}

function fromBase64(text: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  } catch {
    return undefined;
  }
}

function keysOf(secrets: Secrets): Uint8Array<ArrayBuffer>[] {
  const texts = typeof secrets === "string" ? [secrets] : secrets;
  if (texts.length === 0) throw new TypeError("at least one signing secret is needed");
  return texts.map((text) => {
    const coded = text.startsWith("whsec_");
    const key = coded
      ? fromBase64(text.slice("whsec_".length))
      : new Uint8Array(new TextEncoder().encode(text));
    if (key === undefined) {
      throw new TypeError("what follows whsec_ in a signing secret must be base64");
    }
    if (key.length === 0) throw new TypeError("a signing secret must not be empty");
    return key;
  });
}

/**
 * Where the result of an attempt goes that was answered with 202. It can be stored as JSON, and used
 * by another process: `Callback.from(stored)`.
 */
export class Callback {
  constructor(
    readonly url: string,
    readonly token: string,
    readonly attempt: number,
  ) {}

  /** Returns the callback that was stored as JSON. */
  static from(stored: { url: string; token: string; attempt: number }): Callback {
    return new Callback(stored.url, stored.token, stored.attempt);
  }

  /** Reports success. A repeat is harmless; see {@link report} for errors. */
  succeed(result: unknown = null): Promise<void> {
    return this.report({ status: "succeeded", result });
  }

  /** Reports a failure, which is retried while attempts are left unless not `retryable`. */
  fail(message: string, options: { retryable?: boolean; details?: unknown } = {}): Promise<void> {
    return this.report({
      status: "failed",
      message: cut(message),
      retryable: options.retryable ?? true,
      ...(options.details === undefined ? {} : { error: options.details }),
    });
  }

  /** Hands the job back; the attempt does not count. */
  release(message = "released"): Promise<void> {
    return this.report({ status: "released", message: cut(message) });
  }

  /** Hands the job back for some seconds, or until an instant; the attempt does not count. */
  snooze(until: number | Date, message = "snoozed"): Promise<void> {
    return this.report({ status: "snoozed", message: cut(message), ...snoozedUntil(until) });
  }

  /**
   * Sends a report, again while the server does not answer.
   *
   * @throws {ConflictError} or {@link NotFoundError} if the attempt is over.
   */
  async report(outcome: Outcome): Promise<void> {
    const { http, target, headers } = this.#route();
    const body = { ...outcome, attempt: this.attempt };
    await http.request("POST", target, { body, headers, repeatable: true });
  }

  /** Sends a heartbeat, once, and returns whether the job was cancelled. */
  async heartbeat(shown: Shown = {}): Promise<boolean> {
    const { http, target, headers } = this.#route();
    const body = { ...shown, attempt: this.attempt };
    // One that hangs leaves time for another.
    const options = { body, headers, timeout: BEAT_SECONDS };
    const answer = await http.send("POST", `${target}/heartbeat`, options);
    return (json(answer) as Schemas["Beat"]).cancel;
  }

  #route() {
    const { origin, pathname } = new URL(this.url);
    const retries = { repeats: 1000, seconds: 60 };
    const http = new Transport({ url: origin, token: "", retries, traceparent: () => undefined });
    return { http, target: pathname, headers: { authorization: `Bearer ${this.token}` } };
  }
}

/** The job of a pushed attempt. It has a `callback` in addition. */
export class PushJob extends JobContext {
  /** Where a later result goes. */
  readonly callback: Callback;

  constructor(
    body: Schemas["PushRequest"],
    /** The headers of the request, with those of the job among them. */
    readonly requestHeaders: Headers,
  ) {
    const headers: Record<string, string> = { ...body.headers };
    for (const name of ["traceparent", "tracestate"]) {
      const value = requestHeaders.get(name);
      if (value !== null) headers[name] = value;
    }
    super({ ...body, headers } as unknown as RawJob, body.attempt);
    this.callback = new Callback(body.callback.url, body.callback.token, body.attempt);
  }
}

/** The options of push handlers. */
export interface PushOptions {
  /**
   * The secrets of the types' `signing_secret`; two while one is replaced. Null accepts requests
   * without a signature: only behind another check of the caller.
   */
  readonly secrets: Secrets | null;
  /** Default 300. */
  readonly toleranceSeconds?: number;
  /** Default 8 MiB. */
  readonly maxBodyBytes?: number;
  /** Milliseconds since the Unix epoch; a test passes the clock of its development server. */
  readonly clock?: () => number | Promise<number>;
}

/** What a runtime gives for work that goes on after the response: Workers, Lambda, Next.js. */
export interface ExecutionContext {
  waitUntil(promise: Promise<unknown>): void;
}

/** Handlers of pushed types. */
export class Push {
  readonly #options: PushOptions;
  readonly #handlers = new Map<string, { handler: Handler<PushJob>; background: boolean }>();
  readonly #background = new Set<Promise<void>>();

  constructor(options: PushOptions) {
    if (options.secrets !== null) keysOf(options.secrets);
    this.#options = options;
  }

  /**
   * Registers the handler of a job type. With `background` the answer is 202 at once, and the
   * function goes on and reports when it has ended: for work that takes longer than a request should.
   */
  handle<T>(
    type: string | JobType<T> | readonly (string | JobType<T>)[],
    options: { background?: boolean },
    run: HandlerFunction<T, PushJob>,
  ): this;
  handle<T>(
    type: string | JobType<T> | readonly (string | JobType<T>)[],
    run: HandlerFunction<T, PushJob>,
  ): this;
  handle<T>(
    type: string | JobType<T> | readonly (string | JobType<T>)[],
    second: { background?: boolean } | HandlerFunction<T, PushJob>,
    third?: HandlerFunction<T, PushJob>,
  ): this {
    const background = typeof second === "function" ? false : (second.background ?? false);
    const run = typeof second === "function" ? second : third;
    const types = (Array.isArray(type) ? type : [type]) as (string | JobType<unknown>)[];
    if (run === undefined || types.length === 0) {
      throw new TypeError("a handler needs at least one job type and a function");
    }
    const handler = new Handler<PushJob>(types, run);
    for (const name of handler.types) {
      if (this.#handlers.has(name))
        throw new TypeError(`the job type ${name} has a handler already`);
      this.#handlers.set(name, { handler, background });
    }
    return this;
  }

  /**
   * Answers a request. It is a property, so that it can be passed on:
   * `export default { fetch: push.fetch }`, `export const POST = push.fetch`.
   */
  readonly fetch = async (
    request: Request,
    _environment?: unknown,
    execution?: ExecutionContext,
  ): Promise<Response> => {
    if (request.method !== "POST") return refused(405, "a push is a POST", { allow: "POST" });
    const most = this.#options.maxBodyBytes ?? MAX_BODY_BYTES;
    const body = await boundedBody(request, most);
    if (body === undefined) return refused(413, `the body has more than ${most} bytes`);
    const { secrets, toleranceSeconds } = this.#options;
    if (secrets !== null) {
      try {
        await verify(secrets, request.headers, body, {
          now: (await this.#options.clock?.()) ?? Date.now(),
          ...(toleranceSeconds === undefined ? {} : { toleranceSeconds }),
        });
      } catch (error) {
        if (error instanceof RefusedError) return refused(401, error.message);
        throw error;
      }
    }
    let job: PushJob;
    try {
      job = new PushJob(JSON.parse(new TextDecoder().decode(body)), request.headers);
    } catch {
      return refused(400, "the body is not a push in JSON");
    }
    const found = this.#handlers.get(job.type);
    if (found === undefined) return refused(404, `no handler for the type ${job.type}`);
    if (found.background) {
      const work = runInBackground(found.handler, job).finally(() => this.#background.delete(work));
      this.#background.add(work);
      execution?.waitUntil(work);
      return new Response(null, { status: 202 });
    }
    const outcome = await found.handler.run(job);
    if (job.hasChanges) await job.callback.heartbeat(job.takeChanges()).catch(() => undefined);
    return outcome === LATER ? new Response(null, { status: 202 }) : responseOf(outcome);
  };

  /** Resolves when no handler runs in the background. */
  async idle(): Promise<void> {
    while (this.#background.size > 0) await Promise.all(this.#background);
  }
}

async function boundedBody(request: Request, most: number): Promise<Uint8Array | undefined> {
  if (Number(request.headers.get("content-length")) > most) return undefined;
  const parts: Uint8Array[] = [];
  let size = 0;
  for await (const part of request.body ?? []) {
    size += part.length;
    if (size > most) return undefined;
    parts.push(part);
  }
  const body = new Uint8Array(size);
  let offset = 0;
  for (const part of parts) {
    body.set(part, offset);
    offset += part.length;
  }
  return body;
}

async function runInBackground(handler: Handler<PushJob>, job: PushJob): Promise<void> {
  const ended = new AbortController();
  const beats = keepBeating(job, ended.signal);
  const outcome = await handler.run(job);
  ended.abort();
  // A heartbeat that came after the report would be refused, and its lines lost.
  const wait = new AbortController();
  await Promise.race([beats, pause(MAX_BEAT_WAIT_SECONDS, wait.signal)]);
  wait.abort();
  if (outcome === undefined || outcome === LATER) return;
  const rest = job.takeChanges();
  if (rest.log) outcome.log = rest.log;
  if (outcome.status !== "succeeded" && rest.checkpoint !== undefined) {
    outcome.checkpoint = rest.checkpoint;
  }
  // A report that is refused, or not answered for a minute, is dropped: the attempt is over.
  await job.callback.report(outcome).catch(() => undefined);
}

async function keepBeating(job: PushJob, ended: AbortSignal): Promise<void> {
  let last = clock();
  let hasten = new AbortController();
  job.onChange = () => hasten.abort();
  while (!ended.aborted) {
    const waiting = AbortSignal.any([ended, hasten.signal]);
    await pause(last + BEAT_SECONDS - clock(), waiting);
    if (hasten.signal.aborted) await pause(last + FLUSH_SECONDS - clock(), ended);
    if (ended.aborted) return;
    hasten = new AbortController();
    last = clock();
    const shown = job.takeChanges();
    try {
      if (await job.callback.heartbeat(shown)) job.abort("cancelled");
    } catch (error) {
      if (isTransient(error)) {
        // It is sent again after a second.
        job.putBack(shown);
        hasten.abort();
      } else if (error instanceof ConflictError || error instanceof NotFoundError) {
        job.abort("lease_lost");
        return;
      }
    }
  }
}

/** The answer that means what `outcome` does. */
function responseOf(outcome: Outcome | undefined): Response {
  if (outcome === undefined) return refused(500, "the attempt is over");
  if (outcome.status === "succeeded") return Response.json(outcome.result);
  const message = outcome.message ?? "";
  if (outcome.status === "released") {
    return new Response(message, { status: 503, headers: { "tidegate-status": "released" } });
  }
  if (outcome.status === "snoozed") {
    const seconds = outcome.delay_seconds ?? (Date.parse(outcome.run_at ?? "") - Date.now()) / 1000;
    const after = String(Math.max(0, Math.ceil(seconds)));
    const headers = { "tidegate-status": "snoozed", "retry-after": after };
    return new Response(message, { status: 503, headers });
  }
  const status = outcome.retryable === false ? NOT_RETRYABLE : 500;
  const error = outcome.error === undefined ? {} : { error: outcome.error };
  return Response.json({ message, ...error }, { status });
}

function refused(status: number, error: string, headers: Record<string, string> = {}): Response {
  return Response.json({ error }, { status, headers });
}
