/**
 * Enqueue in a transaction of the application, in the Postgres database of the servers.
 *
 * The job exists if and only if the transaction commits. Nothing here imports a driver.
 */

import { bodyOf } from "./client.js";
import { UnexpectedAnswerError } from "./errors.js";
import type { JobType } from "./schema.js";
import { currentTraceparent } from "./trace.js";
import type { EnqueueOptions } from "./types.js";

/** What an enqueue needs of a connection: `Client`, `PoolClient` and `Pool` of pg have it. */
export interface Queryable {
  query(text: string, values: unknown[]): Promise<{ readonly rows: readonly unknown[] }>;
}

/**
 * The options of an enqueue in a transaction, by their names in the API. There is no `id`, which the
 * database makes, and no `critical`, which needs a token.
 */
export type EnqueueInOptions = Omit<EnqueueOptions, "id" | "critical" | "idempotencyKey"> & {
  /** The schema of the servers (default: `tidegate`). */
  readonly schema?: string;
};

// What the SQL function would refuse, too. But its error would end the transaction.
const SCHEMA = /^[a-z][a-z0-9_]{0,62}$/;
const TYPE = /^(?!\.{1,2}$)[A-Za-z0-9_.-]{1,64}$/;
const INSTANT = /^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)$/;
const REFUSED = {
  id: "the database makes it",
  critical: "it needs a token",
  idempotencyKey: "the transaction decides whether the job exists",
};
// Each value goes as a text: a driver need not know the types of the others.
const ARGUMENTS =
  "type => $1::text, data => $2::text::json, delay => $3::text::interval, " +
  "run_at => $4::text::timestamptz, options => $5::text::json";

/**
 * Enqueues a job in the transaction of a database connection, and returns its id.
 *
 * The call neither begins nor ends a transaction. If a job with the same `unique` key answers the
 * request, no job has the returned id. The errors of the driver are not changed. What only a server can
 * check becomes a dead letter.
 *
 * @example
 * await client.query("BEGIN");
 * await client.query("INSERT INTO orders (id) VALUES ($1)", [17]);
 * await enqueueIn(client, "invoice", { order: 17 }, { delay_seconds: 300 });
 * await client.query("COMMIT");
 *
 * @throws {TypeError} for a wrong argument, before anything is sent.
 */
export async function enqueueIn<T>(
  connection: Queryable,
  type: string | JobType<T>,
  data?: T,
  options: EnqueueInOptions = {},
): Promise<string> {
  const { schema = "tidegate", ...rest } = options;
  if (!SCHEMA.test(schema)) {
    throw new TypeError("schema: must be 1 to 63 of a-z 0-9 _, and begin with a letter");
  }
  const values = valuesOf(bodyOf({ type, data, options: rest }));
  const { rows } = await connection.query(`SELECT "${schema}".enqueue(${ARGUMENTS}) AS id`, values);
  const [row] = rows as readonly { readonly id: string }[];
  if (row === undefined) throw new UnexpectedAnswerError("the database returned no row");
  return row.id;
}

/** The values of the arguments: type, data, delay, instant, options. */
function valuesOf(body: Record<string, unknown>): (string | null)[] {
  for (const [name, why] of Object.entries(REFUSED)) {
    if (body[name] != null && body[name] !== false) {
      throw new TypeError(`${name}: must not be given, because ${why}`);
    }
  }
  const { type, data, delay_seconds, run_at, ...options } = body;
  if (typeof type !== "string" || !TYPE.test(type)) {
    throw new TypeError('type: must be 1 to 64 of A-Z a-z 0-9 _ . -, and not "." or ".."');
  }
  const carried = JSON.stringify(data);
  if (carried === undefined) throw new TypeError(`data: it is a ${typeof data}, no JSON value`);
  const [delay, instant] = [delayOf(delay_seconds), instantOf(run_at)];
  if (delay !== null && instant !== null) {
    throw new TypeError("delay_seconds: must not be given with run_at");
  }
  const trace = currentTraceparent();
  const headers = (options.headers ?? {}) as Record<string, string>;
  if (trace && !Object.keys(headers).some((name) => name.toLowerCase() === "traceparent")) {
    options.headers = { ...headers, traceparent: trace };
  }
  return [type, carried, delay, instant, JSON.stringify(options)];
}

/** A span as Postgres reads it. */
function delayOf(seconds: unknown): string | null {
  if (seconds == null) return null;
  if (typeof seconds !== "number" || !Number.isFinite(seconds) || seconds < 0) {
    throw new TypeError(`delay_seconds: must be a number of seconds from 0, not ${seconds}`);
  }
  return `${seconds.toFixed(3)} seconds`;
}

/** An instant, if it means the same in every session of Postgres. */
function instantOf(text: unknown): string | null {
  if (text == null) return null;
  if (typeof text !== "string" || !INSTANT.test(text) || text < "1970") {
    const example = "2030-01-02T03:04:05Z";
    throw new TypeError(`run_at: must be from 1970 to 9999, such as ${example}, not ${text}`);
  }
  return text;
}
