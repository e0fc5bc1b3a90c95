/**
 * Client, worker and push handlers for the job queue tidegate.
 *
 * @example
 * await new Client().enqueue("letter", { to: "ann@example.com" });
 *
 * const worker = new Worker();
 * worker.handle("letter", { concurrency: 3 }, async (letter, job) => { ... });
 * await worker.run();
 */

export { type BatchItem, Client, type EventOptions, Job, type NewJob } from "./client.js";
export { Config, type Difference, type Kind, Plan, type Step } from "./config.js";
export { JobContext, type RawJob, type Shown } from "./context.js";
export { type EnqueueInOptions, enqueueIn, type Queryable } from "./database.js";
export * from "./errors.js";
export { type HandlerFunction, LATER, type Outcome } from "./handler.js";
export {
  type ClientOptions,
  type QueryValue,
  type RequestOptions,
  type RetryPolicy,
  VERSION,
} from "./http.js";
export type { components, operations, paths } from "./openapi.js";
export {
  Callback,
  type ExecutionContext,
  Push,
  PushJob,
  type PushOptions,
  RefusedError,
  type Secrets,
  type VerifyOptions,
  verify,
} from "./push.js";
export { type JobType, jobType, type Schema, type StandardSchema } from "./schema.js";
export type { Change, StreamOptions } from "./stream.js";
export type * from "./types.js";
export {
  type HandlerOptions,
  type Logger,
  Worker,
  type WorkerOptions,
} from "./worker.js";
