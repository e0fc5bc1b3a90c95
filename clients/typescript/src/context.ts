/** What a handler gets: the job of its attempt, with progress, log lines, checkpoint and abort. */

import { type AbortReason, JobAbortedError } from "./errors.js";
import { pause } from "./http.js";
import type { LogLevel, NewLogLine } from "./types.js";

const MAX_MESSAGE_BYTES = 4096;
const MAX_CHECKPOINT_BYTES = 64 << 10;
// Lines that wait for the next heartbeat; the oldest go first. A request has at most 1000.
const MAX_PENDING_LINES = 1000;
const encoder = new TextEncoder();

/** The length of a text in UTF-8. */
export function byteLength(text: string): number {
  return encoder.encode(text).length;
}

/** Returns `text`, at most `most` bytes of it in UTF-8. */
export function cut(text: string, most = MAX_MESSAGE_BYTES): string {
  const bytes = encoder.encode(text);
  if (bytes.length <= most) return text;
  return new TextDecoder().decode(bytes.subarray(0, most)).replace(/\uFFFD+$/, "");
}

/** A job as a lease or a push names it. */
export interface RawJob {
  readonly id: string;
  readonly type: string;
  readonly max_attempts: number;
  readonly data?: unknown;
  readonly attributes?: Readonly<Record<string, unknown>> | undefined;
  readonly headers?: Readonly<Record<string, string>> | null | undefined;
  readonly checkpoint?: unknown;
}

/** The fields of a heartbeat that show something. */
export interface Shown {
  progress?: number;
  note?: string;
  checkpoint?: unknown;
  log?: NewLogLine[];
}

/** The job of the running attempt. It exists once for each attempt. */
export class JobContext {
  /** The job's id: make the work idempotent by it. */
  readonly id: string;
  readonly type: string;
  readonly maxAttempts: number;
  readonly attributes: Readonly<Record<string, unknown>>;
  readonly headers: Readonly<Record<string, string>>;
  /** What an earlier attempt has stored, or undefined; see {@link saveCheckpoint}. */
  checkpoint: unknown;
  /** Called when there is something to send. @internal */
  onChange: () => void = () => {};
  readonly #abort = new AbortController();
  #shown: Shown = {};

  constructor(
    /** Every field of the job, as in the API. */
    readonly raw: RawJob,
    /** The number of this attempt, from 1. */
    readonly attempt: number,
  ) {
    this.id = raw.id;
    this.type = raw.type;
    this.maxAttempts = raw.max_attempts;
    this.attributes = raw.attributes ?? {};
    this.headers = raw.headers ?? {};
    this.checkpoint = raw.checkpoint ?? undefined;
  }

  /** Aborted when the attempt is over: pass it to `fetch` and the like. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /** Why the attempt is over, if it is. */
  get abortReason(): AbortReason | undefined {
    const reason: unknown = this.#abort.signal.reason;
    return reason instanceof JobAbortedError ? reason.reason : undefined;
  }

  /** The job's W3C trace context; enqueues within the handler carry it on. */
  get traceparent(): string | undefined {
    const found = Object.entries(this.headers).find(([name]) => /^traceparent$/i.test(name));
    return found?.[1];
  }

  /** Waits, and throws {@link JobAbortedError} if the attempt is over before. */
  async sleep(seconds: number): Promise<void> {
    await pause(seconds, this.signal);
    this.signal.throwIfAborted();
  }

  /** Shows progress, 0 to 100. It is sent within a second, and only the latest. */
  progress(percent: number, note?: string): void {
    if (!(percent >= 0 && percent <= 100)) {
      throw new RangeError(`progress must be 0 to 100, not ${percent}`);
    }
    this.#shown.progress = percent;
    if (note === undefined) delete this.#shown.note;
    else this.#shown.note = cut(note);
    this.onChange();
  }

  /** Adds a line to the job's log. It is sent within a second, or with the report. */
  log(text: string, level: LogLevel = "info", fields?: Readonly<Record<string, unknown>>): void {
    // Lines with a time are kept once, although a request is repeated.
    const line: NewLogLine = { time: new Date().toISOString(), level, text };
    if (fields !== undefined) line.fields = JSON.parse(JSON.stringify(fields));
    this.#shown.log = [...(this.#shown.log ?? []), line].slice(-MAX_PENDING_LINES);
    this.onChange();
  }

  /**
   * Stores what the next attempt needs to go on: any JSON value of at most 64 KiB. It is sent within
   * a second, and with a report that does not succeed.
   */
  saveCheckpoint(value: unknown): void {
    const text = JSON.stringify(value);
    if (text === undefined) throw new TypeError("a checkpoint is a JSON value");
    if (byteLength(text) > MAX_CHECKPOINT_BYTES) {
      throw new RangeError("a checkpoint has at most 64 KiB");
    }
    this.#shown.checkpoint = JSON.parse(text);
    this.checkpoint = value;
    this.onChange();
  }

  /** Ends the attempt. @internal */
  abort(reason: AbortReason): void {
    if (!this.signal.aborted) this.#abort.abort(new JobAbortedError(reason));
  }

  /** Whether something was not sent yet. @internal */
  get hasChanges(): boolean {
    return Object.keys(this.#shown).length > 0;
  }

  /** Takes what was not sent yet. @internal */
  takeChanges(): Shown {
    const shown = this.#shown;
    this.#shown = {};
    return shown;
  }

  /** Takes back what a heartbeat without an answer had, unless there is something newer. @internal */
  putBack(shown: Shown): void {
    const log = [...(shown.log ?? []), ...(this.#shown.log ?? [])].slice(-MAX_PENDING_LINES);
    this.#shown = { ...shown, ...this.#shown, ...(log.length > 0 ? { log } : {}) };
  }
}
