/** Handlers: what the return or the exception of one means for the attempt. */

import { byteLength, cut, type JobContext } from "./context.js";
import { JobAbortedError, PermanentError, Release, Snooze } from "./errors.js";
import { decode, type JobType, type Schema } from "./schema.js";
import { withTraceparent } from "./trace.js";
import type { Schemas } from "./types.js";

const MAX_DETAILS_BYTES = 16 << 10;
// Most stacks that a report has, of an error and its causes.
const MAX_STACKS = 8;

/** A function that runs the jobs of a type: it gets the data and the job, and returns the result. */
export type HandlerFunction<T, C = JobContext> = (data: T, job: C) => unknown;

/** What is reported of an attempt, without the names of job and attempt. */
export type Outcome = Omit<Schemas["Report"], "attempt">;

/** What the handler of a push returns when the result comes later: the answer is 202. */
export const LATER: unique symbol = Symbol("later");

/** A handler with the types it is for. */
export class Handler<C extends JobContext = JobContext> {
  readonly types: readonly string[];
  readonly #schemas: ReadonlyMap<string, Schema<unknown> | undefined>;
  readonly #run: HandlerFunction<never, C>;

  constructor(types: readonly (string | JobType<unknown>)[], run: HandlerFunction<never, C>) {
    const all = types.map((type) => (typeof type === "string" ? { name: type } : type));
    this.types = all.map((type) => type.name);
    this.#schemas = new Map(all.map((type) => [type.name, (type as JobType<unknown>).schema]));
    this.#run = run;
  }

  /** Calls the function as a worker does, and returns what it returns. */
  async call(job: C): Promise<unknown> {
    const data = await decode(this.#schemas.get(job.type), job.raw.data);
    return withTraceparent(job.traceparent, () => this.#run(data as never, job));
  }

  /**
   * Runs the function, and returns what is to be reported. Undefined if the lease was lost: another
   * attempt has the job. `LATER` if the handler of a push has returned that.
   */
  async run(job: C): Promise<Outcome | undefined | typeof LATER> {
    let data: unknown;
    try {
      data = await decode(this.#schemas.get(job.type), job.raw.data);
    } catch (error) {
      // The same data is wrong in every attempt.
      const message = `the data cannot be read: ${messageOf(error)}`;
      return { ...failure(message, detailsOf(error)), retryable: false };
    }
    let result: unknown;
    try {
      result = await withTraceparent(job.traceparent, () => this.#run(data as never, job));
    } catch (error) {
      return outcomeOf(error, job);
    }
    if (job.abortReason === "lease_lost") return undefined;
    if (result === LATER) return LATER;
    try {
      const text = JSON.stringify(result === undefined ? null : result);
      if (text === undefined) throw new TypeError(`it is a ${typeof result}`);
      return { status: "succeeded", result: result === undefined ? null : result };
    } catch (error) {
      const message = `the result is not a JSON value: ${messageOf(error)}`;
      return { ...failure(message, detailsOf(error)), retryable: false };
    }
  }
}

/** What is reported of an attempt whose handler has thrown. */
function outcomeOf(error: unknown, job: JobContext): Outcome | undefined {
  const aborted = job.abortReason;
  if (aborted === "lease_lost") return undefined;
  if (error instanceof Snooze) {
    return { status: "snoozed", message: cut(error.message), ...snoozedUntil(error.until) };
  }
  if (error instanceof Release) return { status: "released", message: cut(error.message) };
  const isAbort = error instanceof JobAbortedError || (error as Error)?.name === "AbortError";
  if (aborted !== undefined && isAbort) {
    return failure(
      aborted === "cancelled" ? "cancelled" : "its worker stopped before it ended",
      undefined,
    );
  }
  if (error instanceof PermanentError) {
    const details = error.details === undefined ? detailsOf(error) : error.details;
    return { ...failure(error.message, details), retryable: false };
  }
  const name = error instanceof Error ? error.name : typeof error;
  const text = messageOf(error);
  return failure(text ? `${name}: ${text}` : name, detailsOf(error));
}

/** The field of a report that says when a job may start again. */
export function snoozedUntil(until: number | Date): { delay_seconds: number } | { run_at: string } {
  return typeof until === "number" ? { delay_seconds: until } : { run_at: until.toISOString() };
}

function failure(message: string, details: unknown): Outcome {
  const outcome: Outcome = { status: "failed", message: cut(message) };
  if (details !== undefined) {
    const text = JSON.stringify(details) ?? "null";
    outcome.error =
      byteLength(text) > MAX_DETAILS_BYTES
        ? { cut: cut(text, MAX_DETAILS_BYTES / 4) }
        : JSON.parse(text);
  }
  return outcome;
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Adds the stack of an error, and of those that it was caused by or gathers. */
function addStacks(error: unknown, prefix: string, stacks: string[]): void {
  if (stacks.length === MAX_STACKS) return;
  stacks.push(prefix + (error instanceof Error ? (error.stack ?? String(error)) : String(error)));
  if (!(error instanceof Error)) return;
  if (error.cause !== undefined) addStacks(error.cause, "caused by ", stacks);
  const inner: unknown = error instanceof AggregateError ? error.errors : [];
  for (const one of inner as unknown[]) addStacks(one, "with ", stacks);
}

/** The class and the stack trace, of a long one the beginning, which is the innermost part. */
function detailsOf(error: unknown): unknown {
  if (!(error instanceof Error)) return { type: typeof error, trace: String(error).slice(0, 2048) };
  const stacks: string[] = [];
  addStacks(error, "", stacks);
  let trace = stacks.join("\n");
  const details = () => ({ type: error.name, trace });
  while (byteLength(JSON.stringify(details())) > MAX_DETAILS_BYTES) {
    trace = trace.slice(0, Math.floor(trace.length * 0.75));
  }
  return details();
}
