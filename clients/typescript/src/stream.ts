/** The stream of committed changes: server-sent events that survive broken connections. */

import { UnexpectedAnswerError, UnreachableError } from "./errors.js";
import { backoff, isTransient, pause, problemOf, type Transport } from "./http.js";

// The server sends a comment at least this often; a longer silence is a broken connection.
const MAX_SILENCE_SECONDS = 60;
const MAX_EVENT_CHARACTERS = 1 << 20;

/** One event of the stream. */
export interface Change {
  /** `ready`, `job`, `removed`, `queue`, `job_type`, `worker` or `skipped`. */
  readonly name: string;
  /** Its id, for `after` of a later stream. */
  readonly id: string | undefined;
  /** Its data, as the API describes it. */
  readonly data: Record<string, unknown>;
}

/** Which changes. */
export interface StreamOptions {
  readonly queue?: string;
  readonly type?: string;
  readonly ids?: readonly string[];
  /** The id of the last event that was read. */
  readonly after?: string;
  /** Ends the stream. */
  readonly signal?: AbortSignal;
}

/** Yields changes until the signal is aborted or the caller leaves the loop. */
export async function* changes(http: Transport, options: StreamOptions): AsyncGenerator<Change> {
  let after = options.after;
  let failures = 0;
  while (!options.signal?.aborted) {
    try {
      for await (const change of connection(http, options, after)) {
        failures = 0;
        if (change.id !== undefined) after = change.id;
        yield change;
      }
    } catch (error) {
      if (options.signal?.aborted) return;
      if (!isTransient(error)) throw error;
      failures += 1;
      await pause(backoff(failures), options.signal);
    }
  }
}

async function* connection(
  http: Transport,
  options: StreamOptions,
  after: string | undefined,
): AsyncGenerator<Change> {
  const broken = new AbortController();
  const stop = () => broken.abort();
  options.signal?.addEventListener("abort", stop, { once: true });
  let silence: ReturnType<typeof setTimeout> | undefined;
  const listen = () => {
    clearTimeout(silence);
    silence = setTimeout(stop, MAX_SILENCE_SECONDS * 1000);
  };
  try {
    listen();
    const query = { queue: options.queue, type: options.type, id: options.ids?.join(",") };
    const headers = after === undefined ? undefined : { "last-event-id": after };
    const request = { query, headers, signal: broken.signal };
    const response = await http.open("GET", "/v1/stream", request, "text/event-stream", undefined);
    if (response.status >= 400 || response.body === null) {
      const { status, headers } = response;
      throw problemOf({ status, headers, text: await response.text() });
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read().catch((cause: unknown) => {
        throw new UnreachableError("the stream broke", { cause });
      });
      if (done) return;
      listen();
      text += value.replaceAll("\r\n", "\n");
      if (text.length > MAX_EVENT_CHARACTERS) {
        throw new UnexpectedAnswerError("an event of the stream has more than 1 MiB");
      }
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const change = read(text.slice(0, end));
        text = text.slice(end + 2);
        if (change !== undefined) yield change;
      }
    }
  } finally {
    clearTimeout(silence);
    options.signal?.removeEventListener("abort", stop);
    broken.abort();
  }
}

function read(block: string): Change | undefined {
  let name = "message";
  let id: string | undefined;
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") name = value;
    else if (field === "id") id = value;
    else if (field === "data") data.push(value);
  }
  return data.length === 0 ? undefined : { name, id, data: JSON.parse(data.join("\n")) };
}
