/**
 * The client: enqueue, read, wait for results, send events, and configure.
 *
 * Requests that are safe to repeat are repeated: an enqueue carries an `Idempotency-Key` of its own,
 * so that a lost answer makes no second job.
 */

import { type Config, makePlan, type Plan } from "./config.js";
import {
  type ProblemDocument,
  type ProblemError,
  problem,
  UnexpectedAnswerError,
  WaitTimeoutError,
} from "./errors.js";
import type { QueryValue } from "./http.js";
import { type ClientOptions, clock, json, path, type RequestOptions, Transport } from "./http.js";
import { instant, type JobType } from "./schema.js";
import { type Change, changes, type StreamOptions } from "./stream.js";
import type { ApiJob, EnqueueOptions, Ingested, LogLine, Schemas } from "./types.js";

// A batch within these bounds is sent without reading the server's.
const SMALL_BATCH = 1000;
const SMALL_BATCH_BYTES = 1 << 20;
// What a batch has in addition to its jobs.
const BATCH_FRAME_BYTES = '{"jobs":[]}'.length;
const encoder = new TextEncoder();
// The longest wait of one request; a longer wait is several of them.
const MAX_WAIT_SECONDS = 60;

/** A job of a batch. */
export interface NewJob {
  readonly type: string | JobType<unknown>;
  readonly data?: unknown;
  readonly options?: Omit<EnqueueOptions, "idempotencyKey">;
}

/** The outcome of one job of a batch: either `job` or `error`. */
export interface BatchItem {
  readonly job?: Job;
  readonly error?: ProblemError;
}

/** The attributes of an event, except its type, source and data. */
export interface EventOptions {
  /** Unique within its source (default: a random one). */
  readonly id?: string;
  readonly subject?: string;
  readonly time?: Date | string;
  readonly extensions?: Readonly<Record<string, string | number | boolean>>;
}

/** A job that was enqueued or read: its fields as they were then, and what may be done next. */
export class Job {
  readonly #client: Client;
  /** Whether the enqueue made it; false if it existed, by its id, key or `unique`. */
  readonly isNew: boolean;

  constructor(
    client: Client,
    /** Every field, as in the API. */
    readonly raw: ApiJob,
    status = 200,
  ) {
    this.#client = client;
    this.isNew = status === 201;
  }

  /** Its id. */
  get id(): string {
    return this.raw.id;
  }

  /** Its type. */
  get type(): string {
    return this.raw.type;
  }

  /** `scheduled`, `running`, `succeeded`, `failed`, ..., when it was read. */
  get state(): string {
    return this.raw.state;
  }

  /** The state, with `scheduled` divided: `scheduled`, `ready`, `retrying`. */
  get phase(): string {
    return this.raw.phase;
  }

  /** Returns its result; see {@link Client.result}. */
  result<R = unknown>(wait?: number): Promise<R> {
    return this.#client.result<R>(this.type, this.id, wait);
  }

  /** Returns it as it is now. */
  refresh(): Promise<Job> {
    return this.#client.job(this.id, this.type);
  }

  /** Cancels it; see {@link Client.cancel}. */
  cancel(options?: { force?: boolean }): Promise<Job> {
    return this.#client.cancel(this.type, this.id, options);
  }
}

/** A client of one server. */
export class Client {
  /** The requests below the methods of this class. */
  readonly http: Transport;
  #limits: Schemas["Limits"] | undefined;

  constructor(options: ClientOptions = {}) {
    this.http = new Transport(options);
  }

  /** The URL of the server. */
  get url(): string {
    return this.http.url;
  }

  /**
   * Sends any request of the API, and returns the answer's JSON. `path` begins with `/v1/`. GET, PUT
   * and DELETE are repeated; a POST only with an `Idempotency-Key` or if it is `repeatable`.
   */
  async request<R = unknown>(method: string, path: string, options?: RequestOptions): Promise<R> {
    return json(await this.http.request(method, path, options)) as R;
  }

  /**
   * Enqueues a job. `options` are the API's fields of a job.
   *
   * The call is repeated safely: by `id` if it is given, else by `idempotencyKey`, else by a random
   * key. `isNew` of the job is false if it existed.
   *
   * @throws {InvalidRequestError} for a wrong option.
   * @throws {NotFoundError} for an unknown type.
   * @throws {ConflictError} if another request has used the id or the key.
   */
  async enqueue<T>(
    type: string | JobType<T>,
    data?: T,
    options: EnqueueOptions = {},
  ): Promise<Job> {
    const { idempotencyKey, ...rest } = options;
    const body = bodyOf({ type, data, options: rest });
    const key = idempotencyKey ?? (rest.id == null ? crypto.randomUUID() : undefined);
    const headers = key === undefined ? undefined : { "idempotency-key": key };
    const answer = await this.http.request("POST", "/v1/jobs", { body, headers, repeatable: true });
    return new Job(this, json(answer) as ApiJob, answer.status);
  }

  /**
   * Enqueues jobs, as many with each request as the server takes, and returns one outcome per job,
   * in order. A refused job does not affect the others. With `idempotencyKey` the call can be
   * repeated with the same list.
   */
  async enqueueMany(
    jobs: Iterable<NewJob>,
    options: { idempotencyKey?: string } = {},
  ): Promise<BatchItem[]> {
    const key = options.idempotencyKey ?? crypto.randomUUID();
    const items: BatchItem[] = [];
    let number = 0;
    for (const part of await this.#batches(Array.from(jobs, bodyOf))) {
      const headers = { "idempotency-key": `${key}.${number}` };
      number += 1;
      const body = { jobs: part };
      const answer = await this.request<Schemas["BatchView"]>("POST", "/v1/jobs/batch", {
        body,
        headers,
      });
      for (const { status, job, error } of answer.results) {
        items.push({
          ...(job ? { job: new Job(this, job, status) } : {}),
          ...(error ? { error: problem(status, error as ProblemDocument) } : {}),
        });
      }
    }
    return items;
  }

  /** The bodies in parts that each fit into one request. */
  async #batches<T>(bodies: readonly T[]): Promise<T[][]> {
    const sizes = bodies.map((body) => encoder.encode(JSON.stringify(body)).length + 1);
    let [most, mostBytes] = [SMALL_BATCH, SMALL_BATCH_BYTES];
    if (bodies.length > most || sizes.reduce((sum, size) => sum + size, 0) > mostBytes) {
      const limits = await this.limits();
      [most, mostBytes] = [limits.batch_jobs, limits.batch_request_bytes];
    }
    const parts: T[][] = [];
    let size = Number.POSITIVE_INFINITY;
    for (const [index, body] of bodies.entries()) {
      const more = sizes[index] as number;
      if (parts.at(-1)?.length === most || size + more > mostBytes) {
        parts.push([]);
        size = BATCH_FRAME_BYTES;
      }
      parts.at(-1)?.push(body);
      size += more;
    }
    return parts;
  }

  /** Returns what the server accepts in one request. It is read once. */
  async limits(): Promise<Schemas["Limits"]> {
    this.#limits ??= await this.request<Schemas["Limits"]>("GET", "/v1/limits");
    return this.#limits;
  }

  /** Returns a job by its id. @throws {NotFoundError} if there is none. */
  async job(id: string, type?: string): Promise<Job> {
    const target = type === undefined ? path("jobs", id) : path("jobs", type, id);
    return new Job(this, await this.request<ApiJob>("GET", target));
  }

  /** Yields the jobs that the filters of `GET /v1/jobs` match, page by page. */
  async *jobs(filters: Readonly<Record<string, QueryValue>> = {}): AsyncGenerator<Job> {
    for await (const raw of this.pages<ApiJob>("/v1/jobs", "jobs", filters)) {
      yield new Job(this, raw);
    }
  }

  /** Yields the `items` of every page of a list of the API. */
  async *pages<T>(
    path: string,
    items: string,
    query: Readonly<Record<string, QueryValue>> = {},
  ): AsyncGenerator<T> {
    let cursor: string | undefined;
    do {
      const page: Record<string, unknown> = await this.request("GET", path, {
        query: { ...query, cursor },
      });
      yield* page[items] as T[];
      cursor = page.next_cursor as string | undefined;
    } while (cursor);
  }

  /**
   * Returns the result of a job, after at most `wait` seconds; without `wait` it waits for its end.
   *
   * @throws {JobFailedError} if it ended otherwise.
   * @throws {WaitTimeoutError} if it did not end within the wait.
   */
  async result<R = unknown>(type: string, id: string, wait?: number): Promise<R> {
    const until = wait === undefined ? Number.POSITIVE_INFINITY : clock() + wait;
    const target = path("jobs", type, id, "result");
    for (;;) {
      const part = Math.min(MAX_WAIT_SECONDS, Math.max(0, until - clock()));
      try {
        const query = part > 0 ? { wait: part.toFixed(3) } : undefined;
        const answer = await this.http.request("GET", target, { query, wait: part });
        const state = answer.headers.get("tidegate-state");
        if (state === null) {
          throw new UnexpectedAnswerError("the answer has no header Tidegate-State");
        }
        if (state === "succeeded") return json(answer) as R;
        const detail = `the job is ${state}, and did not end within ${wait} s`;
        throw problem(408, { code: "wait_timeout", title: "Wait timeout", detail });
      } catch (error) {
        if (!(error instanceof WaitTimeoutError) || clock() >= until) throw error;
      }
    }
  }

  /** Cancels a job. A running one ends when its worker reports; `force` ends it at once. */
  async cancel(type: string, id: string, options: { force?: boolean } = {}): Promise<Job> {
    const query = options.force ? { force: true } : undefined;
    return new Job(this, await this.request("DELETE", path("jobs", type, id), { query }));
  }

  /**
   * Runs an ended job again, as a new job. A second call returns the same new job. `again` makes
   * another one; `data`, `priority`, ... replace those of the old job.
   */
  async replay(
    type: string,
    id: string,
    changes: Partial<Schemas["ReplayWith"]> = {},
  ): Promise<Job> {
    const headers = changes.again ? { "idempotency-key": crypto.randomUUID() } : undefined;
    const target = path("jobs", type, id, "replay");
    const options = { body: changes, headers, repeatable: true };
    const answer = await this.http.request("POST", target, options);
    return new Job(this, json(answer) as ApiJob, answer.status);
  }

  /** Changes a scheduled job; null sets what an enqueue without the field has. */
  async change(type: string, id: string, changes: Schemas["JobPatch"]): Promise<Job> {
    const options = { body: changes, repeatable: true };
    return new Job(this, await this.request("PATCH", path("jobs", type, id), options));
  }

  /** Returns why a job waits, as in `GET /v1/jobs/{type}/{id}/explain`. */
  explain(type: string, id: string): Promise<Schemas["Explanation"]> {
    return this.request("GET", path("jobs", type, id, "explain"));
  }

  /** Returns the log lines of a job that are kept, oldest first. */
  async log(type: string, id: string, attempt?: number): Promise<LogLine[]> {
    const lines: LogLine[] = [];
    let cursor: string | undefined;
    for (;;) {
      const page: Schemas["LogPage"] = await this.request("GET", path("jobs", type, id, "log"), {
        query: { attempt, cursor },
      });
      lines.push(...page.lines);
      // A page of a job that has not ended always names a next one.
      if (page.lines.length === 0 || !page.next_cursor) return lines;
      cursor = page.next_cursor;
    }
  }

  /**
   * Sends a CloudEvent, and returns what each trigger did about it. Repeats of this client send the
   * same id, so that a lost answer makes no second job.
   */
  sendEvent(
    type: string,
    source: string,
    data?: unknown,
    options: EventOptions = {},
  ): Promise<Ingested> {
    const body = {
      ...options.extensions,
      specversion: "1.0",
      id: options.id ?? crypto.randomUUID(),
      source,
      type,
      ...(options.subject === undefined ? {} : { subject: options.subject }),
      ...(options.time === undefined ? {} : { time: instant(options.time) }),
      ...(data === undefined ? {} : { datacontenttype: "application/json", data }),
    };
    const headers = { "content-type": "application/cloudevents+json" };
    return this.request("POST", "/v1/events", { body, headers, repeatable: true });
  }

  /**
   * Yields the changes of jobs, queues, types and workers as they are committed. It connects again
   * after a break, and goes on behind the last event.
   */
  stream(options: StreamOptions = {}): AsyncGenerator<Change> {
    return changes(this.http, options);
  }

  /**
   * Compares a configuration with the server, and changes nothing.
   *
   * Secrets cannot be read, so the server compares those of a job type that declares or has one. That
   * needs the scope `admin`; with `secrets: false` they are not compared, and `read` is enough.
   */
  plan(config: Config, options: { secrets?: boolean } = {}): Promise<Plan> {
    return makePlan(this, config, options.secrets ?? true);
  }

  /** Creates or changes what a configuration declares, and returns what was done. */
  async apply(config: Config, options: { secrets?: boolean } = {}): Promise<Plan> {
    const plan = await this.plan(config, options);
    await plan.apply();
    return plan;
  }
}

/** The body of a request, by the names of the API. */
export function bodyOf({ type, data, options }: NewJob): Record<string, unknown> {
  const body: Record<string, unknown> = {
    ...options,
    type: typeof type === "string" ? type : type.name,
    data: data === undefined ? null : data,
  };
  for (const name of ["run_at", "expires_at"]) {
    if (body[name] instanceof Date) body[name] = instant(body[name]);
  }
  return body;
}
