/** The types of the HTTP API by their short names, from the generated document. */

import type { components } from "./openapi.js";

export type Schemas = components["schemas"];
export type ApiJob = Schemas["Job"];
export type ApiLease = Schemas["Lease"];
export type ApiLeases = Schemas["Leases"];
export type Ingested = Schemas["Ingested"];
export type LogLine = Schemas["LogLine"];
export type LogLevel = Schemas["LogLevel"];
export type NewLogLine = Schemas["NewLogLine"];
export type QueueSettings = Schemas["QueueConfig"];
export type TypeSettings = Schemas["TypeConfig"];
export type ScheduleSettings = Schemas["NewSchedule"];
export type TriggerSettings = Schemas["TriggerConfig"];

/** The options of an enqueue, by their names in the API. */
export type EnqueueOptions = Omit<
  Partial<Schemas["NewJob"]>,
  "type" | "data" | "run_at" | "expires_at"
> & {
  /** The earliest start. */
  readonly run_at?: Date | string | null;
  /** It never starts after this instant. */
  readonly expires_at?: Date | string | null;
  /** Makes the enqueue repeatable, 1 to 255 characters (default: a random one). */
  readonly idempotencyKey?: string;
};
