/**
 * A test kit on `tidegate dev`: a throw-away server whose clock a test freezes and moves.
 *
 * The program `tidegate` is that of `TIDEGATE_PROGRAM`, or is found in `PATH`.
 */

import { type ChildProcess, spawn } from "node:child_process";
import type { Socket } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { Client, type Job } from "./client.js";
import type { Config } from "./config.js";
import { JobContext, type RawJob } from "./context.js";
import { TidegateError } from "./errors.js";
import { Handler, type HandlerFunction, LATER, type Outcome } from "./handler.js";
import { path, type QueryValue } from "./http.js";
import { instant, type JobType } from "./schema.js";
import type { ApiLease, ApiLeases, Schemas } from "./types.js";
import { Worker } from "./worker.js";

const START_SECONDS = 30;
const MAX_DRAINED = 10_000;

/** One attempt that {@link DevServer.drain} ran. */
export interface Run {
  readonly type: string;
  readonly id: string;
  readonly attempt: number;
  readonly data: unknown;
  readonly status: Outcome["status"];
  readonly result: unknown;
  readonly message: string | undefined;
}

/** A span of time for {@link DevServer.advance}; its parts are added. */
export interface Span {
  readonly days?: number;
  readonly hours?: number;
  readonly minutes?: number;
  readonly seconds?: number;
}

/** What a job must have for {@link DevServer.assertEnqueued}. */
export interface Wanted {
  /** Matches if its fields are in the job's data. */
  readonly data?: unknown;
  /** Exactly so many jobs (default: at least one). */
  readonly count?: number;
  /** Fields of the job, such as `priority`. */
  readonly [field: string]: unknown;
}

/** A server for one test run, without tokens, on this machine alone. */
export class DevServer implements AsyncDisposable {
  readonly client: Client;
  readonly #process: ChildProcess;

  private constructor(client: Client, process: ChildProcess) {
    this.client = client;
    this.#process = process;
  }

  /** Starts a server on a free port. Rejects if it does not start within 30 seconds. */
  static async start(
    options: { program?: string; environment?: Record<string, string> } = {},
  ): Promise<DevServer> {
    const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith("TIDEGATE_"));
    const program = options.program ?? process.env.TIDEGATE_PROGRAM ?? "tidegate";
    const child = spawn(program, ["dev", "--listen", "127.0.0.1:0"], {
      stdio: ["ignore", "ignore", "pipe"],
      env: { ...Object.fromEntries(inherited), ...options.environment },
    });
    const lines: string[] = [];
    const url = await new Promise<string>((resolve, reject) => {
      const fail = (why: string) => {
        child.kill();
        reject(new TidegateError(`the server did not start: ${why}${lines.join("\n")}`));
      };
      const timer = setTimeout(() => fail("no answer\n"), START_SECONDS * 1000);
      child.once("error", (error) => fail(error.message));
      child.once("exit", (code) => fail(`exit code ${code}\n`));
      createInterface({ input: child.stderr }).on("line", (line) => {
        lines.push(line);
        lines.splice(0, lines.length - 50);
        const address = / on (http:\/\/\S+)/.exec(line)?.[1];
        if (address !== undefined) {
          clearTimeout(timer);
          resolve(address);
        }
      });
    });
    // A test that forgets to stop its server ends, and the server with it.
    child.unref();
    (child.stderr as Partial<Socket>).unref?.();
    process.once("exit", () => child.kill());
    return new DevServer(new Client({ url, token: "" }), child);
  }

  /** The URL of the server. */
  get url(): string {
    return this.client.url;
  }

  /** Ends the server and removes its data. */
  async stop(): Promise<void> {
    const child = this.#process;
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.ref();
    child.kill("SIGTERM");
    const timer = setTimeout(() => child.kill("SIGKILL"), 10_000);
    await ended;
    clearTimeout(timer);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }

  /** Returns what the server's clock shows. */
  async now(): Promise<Date> {
    const clock = await this.client.request<Schemas["DevClock"]>("GET", "/v1/dev/clock");
    return new Date(clock.now);
  }

  /** Stops the clock. */
  freeze(): Promise<Date> {
    return this.#clock({ freeze: true });
  }

  /** Lets the clock run on from what it shows. */
  unfreeze(): Promise<Date> {
    return this.#clock({ freeze: false });
  }

  /**
   * Moves the clock forward, by seconds or by a span. What is due then happens at once. Over several
   * due times, move it step by step.
   */
  advance(span: number | Span): Promise<Date> {
    const {
      days = 0,
      hours = 0,
      minutes = 0,
      seconds = 0,
    } = typeof span === "number" ? { seconds: span } : span;
    const total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
    return this.#clock({ advance_seconds: total });
  }

  /** Moves the clock forward to an instant. */
  setTime(now: Date | string): Promise<Date> {
    return this.#clock({ set: instant(now) });
  }

  async #clock(body: Schemas["DevClockChange"]): Promise<Date> {
    const options = { body };
    const clock = await this.client.request<Schemas["DevClock"]>("POST", "/v1/dev/clock", options);
    return new Date(clock.now);
  }

  /** Applies configurations, and those of workers; see {@link Worker.apply}. */
  async apply(...sources: (Config | Worker)[]): Promise<void> {
    for (const source of sources) {
      await (source instanceof Worker ? source.apply(this.client) : this.client.apply(source));
    }
  }

  /** Returns the jobs of a type, oldest first; filters of `GET /v1/jobs` select. */
  async jobs(type: string, filters: Record<string, QueryValue> = {}): Promise<Job[]> {
    const found: Job[] = [];
    for await (const job of this.client.jobs({ ...filters, type })) found.unshift(job);
    return found;
  }

  /** Asserts that jobs were enqueued, and returns those that match, oldest first. */
  async assertEnqueued(type: string, wanted: Wanted = {}): Promise<Job[]> {
    const { count, ...fields } = wanted;
    const every: Job[] = [];
    for (const job of await this.jobs(type)) every.push(await this.client.job(job.id));
    const found = every.filter((job) => contains(job.raw, fields));
    if (count === undefined ? found.length === 0 : found.length !== count) {
      const shown = every.map((job) => `  ${job.id} ${job.phase} ${JSON.stringify(job.raw.data)}`);
      throw new TidegateError(
        `${found.length} jobs of type ${type} match ${JSON.stringify(fields)}, not ` +
          `${count ?? "at least one"}; there are\n${shown.join("\n") || "  none"}`,
      );
    }
    return found;
  }

  /**
   * Runs the due jobs of a worker's handlers here, until none can start. A job that a handler
   * enqueues is run, too, if it is due; a retry that is due later is not. Returns the attempts in
   * the order in which they ran.
   */
  async drain(worker: Worker): Promise<Run[]> {
    const runs: Run[] = [];
    while (runs.length < MAX_DRAINED) {
      let lease = await this.#lease(worker.types, runs.length > 0 ? 0.05 : 0);
      if (lease === undefined && (await this.#hasReady(worker.types))) {
        // A limit may be about to be freed. If not, it holds what is left.
        lease = await this.#lease(worker.types, 1);
      }
      if (lease === undefined) return runs;
      runs.push(await this.#run(worker, lease));
    }
    throw new TidegateError(`more than ${MAX_DRAINED} attempts: a handler enqueues its own type`);
  }

  async #lease(types: string[], wait: number): Promise<ApiLease | undefined> {
    const body = { types, max: 1, wait_seconds: wait, worker: "drain" };
    const answer = await this.client.request<ApiLeases>("POST", "/v1/leases", { body, wait });
    return answer.leases[0];
  }

  async #hasReady(types: string[]): Promise<boolean> {
    for (const type of types) {
      const query = { type, phase: "ready", limit: 1 };
      const page = await this.client.request<Schemas["JobPage"]>("GET", "/v1/jobs", { query });
      if (page.jobs.length > 0) return true;
    }
    return false;
  }

  async #run(worker: Worker, lease: ApiLease): Promise<Run> {
    const raw = lease.job as unknown as RawJob;
    const handler = worker.handler(raw.type);
    if (handler === undefined) throw new TidegateError(`no handler for the type ${raw.type}`);
    const job = new JobContext(raw, lease.attempt);
    const ran = await handler.run(job);
    const outcome: Outcome =
      ran === undefined || ran === LATER
        ? { status: "failed", message: "only a push reports later" }
        : ran;
    const { log, checkpoint } = job.takeChanges();
    const body = {
      ...outcome,
      attempt: lease.attempt,
      ...(log ? { log } : {}),
      ...(checkpoint !== undefined && outcome.status !== "succeeded" ? { checkpoint } : {}),
    };
    const headers = { authorization: `Bearer ${lease.token}` };
    const target = path("jobs", raw.type, raw.id);
    await this.client.request("POST", target, { body, headers, repeatable: true });
    return {
      type: raw.type,
      id: raw.id,
      attempt: lease.attempt,
      data: raw.data,
      status: outcome.status,
      result: outcome.result,
      message: outcome.message ?? undefined,
    };
  }
}

/**
 * Calls a handler without a server, as a worker would, and returns its result. Data and result are
 * encoded and decoded as on their way through the server, and requests of this package within the
 * handler carry the job's trace context. `job` has fields of the job, such as `attempt`, `headers` or
 * `checkpoint`. An exception of the handler is thrown.
 */
export async function runInPlace<T>(
  type: string | JobType<T>,
  run: HandlerFunction<T>,
  data: T,
  job: Partial<RawJob> & { attempt?: number } = {},
): Promise<unknown> {
  const name = typeof type === "string" ? type : type.name;
  const { attempt = 1, ...fields } = job;
  const sent = JSON.parse(JSON.stringify(data ?? null));
  const raw = { id: "test", max_attempts: 3, ...fields, type: name, data: sent };
  const handler = new Handler([type as JobType<unknown>], run);
  const result = (await handler.call(new JobContext(raw, attempt))) ?? null;
  const text: string | undefined = JSON.stringify(result);
  if (text === undefined) throw new TypeError(`the result is not a JSON value: ${typeof result}`);
  return JSON.parse(text);
}

/** Calls `condition` until it returns a true value, and returns that. Rejects after `seconds`. */
export async function waitUntil<T>(
  condition: () => T | Promise<T>,
  seconds = 10,
): Promise<NonNullable<T>> {
  const until = performance.now() + seconds * 1000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > until) {
      throw new TidegateError(`${condition} was not true within ${seconds} s`);
    }
    await delay(20);
  }
}

function contains(actual: unknown, wanted: unknown): boolean {
  if (typeof wanted === "object" && wanted !== null && !Array.isArray(wanted)) {
    return (
      typeof actual === "object" &&
      actual !== null &&
      Object.entries(wanted).every(([name, value]) =>
        contains((actual as Record<string, unknown>)[name], value),
      )
    );
  }
  return JSON.stringify(actual) === JSON.stringify(wanted);
}
