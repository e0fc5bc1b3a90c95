/**
 * A pull worker: it leases jobs, runs their handlers, and reports.
 *
 * For each handler one lease request is open while a slot is free. A report goes with the next lease
 * request; while one is open, reports go together in a request of their own, so that no result waits
 * for a long poll. A lease request without an answer is repeated under its `request_id` and gets the
 * same leases.
 */

import { Client } from "./client.js";
import { Config, type Plan } from "./config.js";
import { byteLength, JobContext, type RawJob } from "./context.js";
import {
  type AbortReason,
  ForbiddenError,
  NotFoundError,
  type ProblemDocument,
  ProblemError,
  problem,
  TidegateError,
} from "./errors.js";
import { Handler, type HandlerFunction, LATER, type Outcome } from "./handler.js";
import { backoff, clock, isTransient, json, path, pause } from "./http.js";
import type { JobType } from "./schema.js";
import type { ApiLease, ApiLeases, Schemas, TypeSettings } from "./types.js";

// Most reports, and most bytes of them, in one request.
const MAX_REPORTS = 100;
const MAX_REPORT_BYTES = 1 << 20;
// How long a report is sent again to a server that does not answer.
const MAX_REPORT_SECONDS = 60;
// What a handler shows is sent at most this often.
const FLUSH_SECONDS = 1;
// How long a report waits for the heartbeat that is under way, which may carry log lines.
const MAX_BEAT_WAIT_SECONDS = 5;
// A heartbeat waits for its answer at least this long, unless the lease is over before.
const MIN_BEAT_SECONDS = 1;
// A server that answers at once without jobs is not called in a hot loop.
const MIN_POLL_SECONDS = 0.25;
const MAX_PAUSE_SECONDS = 60;
// A report that got this status is sent again, and so is one with a transient error.
const REPEATED_REPORTS = new Set([408, 429, 500, 502, 503, 504]);
const REGISTER_SECONDS = 30;
// How often the desired workers are read.
const FOLLOW_SECONDS = 5;
const MAX_CONCURRENCY = 1000;

/** Where a worker writes what it does: `console` fits. */
export interface Logger {
  info(message: string): void;
  warn(message: string): void;
}

/** The options of a worker. */
export interface WorkerOptions {
  /** Default: a client of `TIDEGATE_URL` and `TIDEGATE_TOKEN`. */
  readonly client?: Client;
  /** The worker's name in lists, unique for each process (default: a random one). */
  readonly name?: string;
  /** How long a lease request waits for jobs, 0 to 60 (default 20). */
  readonly waitSeconds?: number;
  /** The longest pause instead, where a server pays for waiting requests (default 10). */
  readonly maxPauseSeconds?: number;
  /** Replaces the setting of the types. */
  readonly leaseSeconds?: number;
  /** How long a stop waits for running handlers before it aborts them (default: for their end). */
  readonly graceSeconds?: number;
  /** Default: nothing is written. */
  readonly logger?: Logger;
  readonly config?: Config;
}

/** The options of a handler. */
export interface HandlerOptions {
  /** At most so many of its jobs run at once in this process, 1 to 1000 (default 1). */
  readonly concurrency?: number;
  /**
   * Makes `concurrency` the maximum, and follows the `desired_workers` of the types' queues: this
   * worker's share of them, at least 1, read every five seconds. The token needs the scope `read` in
   * addition to `work`, and no bound to types.
   */
  readonly auto?: boolean;
  /**
   * At least so many jobs are leased at once, unless the wait of a lease request ends: then those
   * that are there. 1 to the concurrency (default 1). The types must be of one queue.
   */
  readonly min?: number;
  /** Declares the queue of its types. */
  readonly queue?: string;
  /** Declares the settings of its types; see {@link Worker.apply}. */
  readonly config?: Partial<TypeSettings>;
}

interface Process {
  on(name: string, listener: () => void): void;
  off(name: string, listener: () => void): void;
  pid: number;
}

function nodeProcess(): Process | undefined {
  const found = (globalThis as { process?: Process }).process;
  return typeof found?.on === "function" ? found : undefined;
}

/** One leased attempt: what runs, and what is reported of it. */
class Attempt {
  readonly job: JobContext;
  readonly token: string;
  readonly target: string;
  lostAt: number;
  lastBeat = clock();
  nextBeat: number;
  timer: ReturnType<typeof setTimeout> | undefined;
  /** Aborts the attempt when its lease is over. */
  endTimer: ReturnType<typeof setTimeout> | undefined;
  /** Its lease was over, by this worker's record, before the handler had ended. */
  isLost = false;
  /** The heartbeat that is under way. */
  beating: Promise<unknown> | undefined;
  isFinished = false;
  isReported = false;
  report: Schemas["Report"] | undefined;
  reportBytes = 0;
  since = clock();

  constructor(
    lease: ApiLease,
    readonly loop: Loop,
    /** How long the lease lasts without a heartbeat. */
    readonly leaseSeconds: number,
  ) {
    const { job } = lease;
    this.job = new JobContext(job as unknown as RawJob, lease.attempt);
    this.token = lease.token;
    this.target = path("jobs", job.type, job.id);
    this.lostAt = clock() + this.leaseSeconds;
    this.nextBeat = clock() + this.leaseSeconds / 3;
  }

  /** Completes the report with what no heartbeat has sent. */
  finish(outcome: Outcome): void {
    const rest = this.job.takeChanges();
    const report: Schemas["Report"] = { ...outcome, attempt: this.job.attempt };
    if (rest.log) report.log = rest.log;
    if (outcome.status !== "succeeded" && rest.checkpoint !== undefined) {
      report.checkpoint = rest.checkpoint;
    }
    this.report = report;
    this.reportBytes = byteLength(JSON.stringify(report));
    this.since = clock();
  }

  /** The report as a part of a lease request. */
  carried(): Schemas["Report"] {
    const { id, type } = this.job;
    return { ...(this.report as Schemas["Report"]), id, type, token: this.token };
  }
}

/** A worker that runs the handlers that are registered with it. */
export class Worker {
  readonly client: Client;
  readonly name: string;
  /** The declarations of the handlers' types, and what was added; see {@link apply}. */
  readonly config: Config;
  readonly options: WorkerOptions;
  /** @internal */
  readonly outbox: Outbox;
  readonly #loops: Loop[] = [];
  readonly #stopping = new AbortController();
  #recount = new AbortController();
  #ended: Promise<void> | undefined;
  #failure: unknown;

  constructor(options: WorkerOptions = {}) {
    this.options = options;
    this.client = options.client ?? new Client();
    const random = crypto.randomUUID().slice(0, 8);
    this.name = options.name ?? `node-${nodeProcess()?.pid ?? 0}-${random}`;
    this.config = options.config ?? new Config();
    this.outbox = new Outbox(this);
  }

  /**
   * Registers the handler of a job type. It gets the data, as the type's schema reads it, and the
   * job. Its return is the result; an exception is a failure.
   */
  handle<T>(
    type: string | JobType<T> | readonly (string | JobType<T>)[],
    options: HandlerOptions,
    run: HandlerFunction<T>,
  ): this;
  handle<T>(
    type: string | JobType<T> | readonly (string | JobType<T>)[],
    run: HandlerFunction<T>,
  ): this;
  handle<T>(
    type: string | JobType<T> | readonly (string | JobType<T>)[],
    second: HandlerOptions | HandlerFunction<T>,
    third?: HandlerFunction<T>,
  ): this {
    const options = typeof second === "function" ? {} : second;
    const run = typeof second === "function" ? second : third;
    const types = (Array.isArray(type) ? type : [type]) as (string | JobType<unknown>)[];
    if (run === undefined || types.length === 0) {
      throw new TypeError("a handler needs at least one job type and a function");
    }
    const concurrency = options.concurrency ?? 1;
    if (!(Number.isInteger(concurrency) && concurrency >= 1 && concurrency <= MAX_CONCURRENCY)) {
      throw new RangeError(`concurrency must be 1 to ${MAX_CONCURRENCY}`);
    }
    const min = options.min ?? 1;
    if (!(Number.isInteger(min) && min >= 1 && min <= concurrency)) {
      throw new RangeError(`min must be 1 to the concurrency, ${concurrency}`);
    }
    const handler = new Handler(types, run);
    for (const name of handler.types) {
      if (this.handler(name)) throw new TypeError(`the job type ${name} has a handler already`);
      if (options.config !== undefined || options.queue !== undefined) {
        const queue = options.queue === undefined ? {} : { queue: options.queue };
        this.config.jobType(name, { ...options.config, ...queue });
      }
    }
    this.#loops.push(new Loop(this, handler, concurrency, options.auto ?? false, min));
    return this;
  }

  /** The handler of a type. */
  handler(type: string): Handler | undefined {
    return this.#loops.find((loop) => loop.handler.types.includes(type))?.handler;
  }

  /** The types that have a handler. */
  get types(): string[] {
    return this.#loops.flatMap((loop) => loop.handler.types);
  }

  /** Aborted as soon as the worker is to stop. */
  get stopping(): AbortSignal {
    return this.#stopping.signal;
  }

  /**
   * Applies the declared configuration, and returns what was done; see {@link Config}. A handler's
   * type that is not declared is created with the defaults if it does not exist.
   */
  async apply(client: Client = this.client): Promise<Plan> {
    const config = this.config.copy();
    for (const name of this.types) {
      if (config.has("job type", name)) continue;
      await client.request("GET", path("job-types", name)).catch((error: unknown) => {
        if (!(error instanceof NotFoundError)) throw error;
        config.jobType(name);
      });
    }
    return client.apply(config);
  }

  /**
   * Works until SIGTERM, SIGINT or {@link stop}; a second signal aborts what runs.
   *
   * @throws what ended the worker: an unknown job type, a token that is not valid.
   */
  async run(): Promise<void> {
    const node = nodeProcess();
    const signalled = () => {
      if (this.stopping.aborted) this.abort();
      this.#stopping.abort();
    };
    const names = ["SIGTERM", "SIGINT"];
    for (const name of names) node?.on(name, signalled);
    try {
      this.start();
      await this.#ended;
    } finally {
      for (const name of names) node?.off(name, signalled);
    }
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Starts to work. */
  start(): void {
    if (this.#loops.length === 0) throw new TidegateError("the worker has no handler");
    if (this.#ended !== undefined) throw new TidegateError("a worker starts once");
    this.#ended = this.#supervise();
  }

  /**
   * Stops: no more leases; what has not begun is handed back, the rest finishes. Resolves when the
   * worker has ended.
   *
   * @throws what ended the worker before.
   */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.ended();
  }

  /** Resolves when the worker has ended. @throws what ended it. */
  async ended(): Promise<void> {
    await this.#ended;
    if (this.#failure !== undefined) throw this.#failure;
  }

  /** Aborts the running handlers. */
  abort(reason: AbortReason = "stopping"): void {
    for (const loop of this.#loops) {
      for (const attempt of loop.attempts) attempt.job.abort(reason);
    }
  }

  /**
   * Handles the answer to one report. A report that was not recorded is sent again. Returns false if
   * that is to wait for a while. @internal
   */
  answered(attempt: Attempt, status: number, error?: unknown): boolean {
    const report = attempt.report as Schemas["Report"];
    const isWrong = status === 400 || status === 413;
    const isOfTheMoment = REPEATED_REPORTS.has(status) || isTransient(error);
    if (status < 300) {
      attempt.loop.settled(attempt);
    } else if (isOfTheMoment && clock() - attempt.since < MAX_REPORT_SECONDS) {
      this.outbox.add(attempt);
      return false;
    } else if (status === 404 || status === 409) {
      this.options.logger?.warn(`the result of ${attempt.job.id} is dropped: ${error}`);
      attempt.loop.settled(attempt);
    } else if (isWrong && report.status === "succeeded") {
      // The work was done, and its result cannot be stored: another attempt would repeat it.
      const message = `its result was refused: ${error}`;
      this.options.logger?.warn(`${attempt.job.id}: ${message}`);
      attempt.finish({ status: "failed", message, retryable: false });
      this.outbox.add(attempt);
    } else if (isWrong && Object.keys(report).length > 3) {
      const message = `its report was refused: ${error}`;
      this.options.logger?.warn(`${attempt.job.id}: ${message}`);
      attempt.finish({ status: "failed", message });
      this.outbox.add(attempt);
    } else {
      this.options.logger?.warn(`the report of ${attempt.job.id} was refused: ${error}`);
      attempt.loop.settled(attempt);
    }
    return true;
  }

  async #supervise(): Promise<void> {
    for (const loop of this.#loops) if (loop.auto) void loop.follow();
    const running = this.#loops.map((loop) =>
      loop.run().catch((error: unknown) => {
        this.#failure ??= error;
        this.#stopping.abort();
        return loop.finished();
      }),
    );
    let isOver = false;
    const all = Promise.all(running).then(() => {
      isOver = true;
    });
    while (!this.stopping.aborted) {
      const recount = new AbortController();
      this.#recount = recount;
      await this.#register();
      await pause(REGISTER_SECONDS, AbortSignal.any([this.stopping, recount.signal]));
    }
    const grace = this.options.graceSeconds;
    const timer =
      grace === undefined ? undefined : setTimeout(() => this.abort("stopping"), grace * 1000);
    while (!isOver) {
      // It ends the waiting lease requests. One that has not arrived yet needs another.
      if (this.#loops.some((loop) => loop.isPolling)) await this.#leave();
      const round = new AbortController();
      await Promise.race([all, pause(0.3, round.signal)]);
      round.abort();
    }
    clearTimeout(timer);
    await this.#leave();
  }

  /** Registers the worker again, because its capacity has changed. @internal */
  recount(): void {
    this.#recount.abort();
  }

  async #register(): Promise<void> {
    const capacity = this.#loops.reduce((sum, loop) => sum + loop.limit, 0);
    const body = { capacity, types: this.types };
    await this.client.http
      .send("PUT", path("workers", this.name), { body, signal: this.stopping })
      .catch((error: unknown) => this.options.logger?.info(`not registered: ${error}`));
  }

  async #leave(): Promise<void> {
    await this.client.http
      .send("DELETE", path("workers", this.name), { query: { keep_drain: true } })
      .catch((error: unknown) => {
        if (!(error instanceof NotFoundError)) {
          this.options.logger?.info(`not deleted from the list of workers: ${error}`);
        }
      });
  }
}

/** The lease requests and the slots of one handler. */
class Loop {
  isPolling = false;
  readonly attempts = new Set<Attempt>();
  /** How many of its jobs may run. */
  limit: number;
  #running = 0;
  /** Reports for the next lease request. */
  #carried: Attempt[] = [];
  /** Those of the request that is open. */
  #sent: Attempt[] = [];
  #pauseUntil = 0;
  /** How long the lease request that was answered had been repeated. */
  #repeatedFor = 0;
  /** How long the leases of each type last. */
  readonly #spans = new Map<string, number>();
  #wake: () => void = () => {};

  constructor(
    readonly worker: Worker,
    readonly handler: Handler,
    readonly concurrency: number,
    readonly auto: boolean,
    readonly min: number,
  ) {
    this.limit = auto ? 1 : concurrency;
  }

  get #free(): number {
    return Math.max(0, this.limit - this.#running);
  }

  /** Follows the desired workers, between 1 and the concurrency, until the worker stops. */
  async follow(): Promise<void> {
    const { stopping, options } = this.worker;
    while (!stopping.aborted) {
      try {
        // At least one lease request keeps the queue aware of this worker.
        const desired = Math.max(1, Math.min(await this.#desired(), this.concurrency));
        if (this.limit !== desired) {
          this.limit = desired;
          this.worker.recount();
          this.#wake();
        }
      } catch (error) {
        if (error instanceof ForbiddenError) {
          // The scopes and bounds of a token never change.
          const why = "auto needs the scope read, and no bound to types";
          options.logger?.warn(`the handler runs one job at a time: ${why}: ${error}`);
          return;
        }
        options.logger?.info(`the desired workers are unknown: ${error}`);
      }
      await pause(FOLLOW_SECONDS, stopping);
    }
  }

  /**
   * This worker's share of the desired workers: what each worker of a queue takes, if all take the
   * same. Rounded up, so that together they take no less than is desired.
   */
  async #desired(): Promise<number> {
    const { http } = this.worker.client;
    const queues = new Set<string>();
    for (const name of this.handler.types) {
      const type = json(await http.send("GET", path("job-types", name))) as Schemas["JobType"];
      queues.add(type.queue ?? "default");
    }
    let desired = 0;
    for (const name of queues) {
      const { status } = json(await http.send("GET", path("queues", name))) as Schemas["Queue"];
      desired += status ? Math.ceil(status.desired_workers / Math.max(1, status.workers ?? 1)) : 1;
    }
    return desired;
  }

  settled(attempt: Attempt): void {
    attempt.isReported = true;
    clearTimeout(attempt.timer);
    clearTimeout(attempt.endTimer);
    this.attempts.delete(attempt);
    this.#wake();
  }

  /** Sends one lease request after another, each until it is answered. */
  async run(): Promise<void> {
    const { stopping } = this.worker;
    stopping.addEventListener("abort", () => this.#wake(), { once: true });
    for (;;) {
      while (!stopping.aborted && !this.#mayLease()) await this.#change();
      if (stopping.aborted) break;
      this.#sent = this.#takeCarried();
      const body = this.#body();
      const began = clock();
      this.isPolling = true;
      const answer = await this.#send(body).finally(() => {
        this.isPolling = false;
      });
      if (answer === undefined) break;
      for (const [index, reported] of answer.reports.entries()) {
        const attempt = this.#sent[index];
        const { status, error } = reported;
        const refused = error ? problem(status, error as ProblemDocument) : undefined;
        if (attempt) this.worker.answered(attempt, status, refused);
      }
      this.#sent = [];
      for (const lease of answer.leases) {
        this.#begin(new Attempt(lease, this, this.#leaseSeconds(lease)));
      }
      this.#pauseUntil = 0;
      if (answer.leases.length === 0 && clock() - began < MIN_POLL_SECONDS) {
        this.#pauseUntil = clock() + MIN_POLL_SECONDS;
      }
      if (answer.retry_after_seconds) {
        this.#pauseUntil = clock() + Math.min(answer.retry_after_seconds, MAX_PAUSE_SECONDS);
      }
      if (answer.stop) {
        this.worker.options.logger?.info("the server stops this worker");
        this.worker.stop();
      }
    }
    await this.finished();
  }

  /** How long a lease lasts without a heartbeat. */
  #leaseSeconds({ job, expires_at }: ApiLease): number {
    // Both are of the server's clock, so a wrong clock here does no harm.
    const milliseconds = Date.parse(expires_at) - Date.parse(job.started_at ?? expires_at);
    const span = Math.max(0.001, milliseconds / 1000);
    const { leaseSeconds } = this.worker.options;
    if (leaseSeconds !== undefined) return Math.min(span, leaseSeconds);
    if (this.#repeatedFor === 0) {
      this.#spans.set(job.type, span);
      return span;
    }
    // A repeat renewed the lease, which may have begun with the first request.
    const least = Math.max(span - this.#repeatedFor, span / 4);
    return Math.min(span, this.#spans.get(job.type) ?? least);
  }

  /** Resolves when every attempt is reported. */
  async finished(): Promise<void> {
    for (const attempt of this.#carried.splice(0)) this.worker.outbox.add(attempt);
    while (this.attempts.size > 0) await this.#change();
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      const rest = this.#pauseUntil - clock();
      const timer =
        rest > 0 && this.#free > 0 ? setTimeout(() => this.#wake(), rest * 1000 + 1) : undefined;
      this.#wake = () => {
        clearTimeout(timer);
        this.#wake = () => {};
        resolve();
      };
    });
  }

  #mayLease(): boolean {
    // A finished job ends a pause: its report goes at once.
    const isPaused = this.#pauseUntil > clock() && this.#carried.length === 0;
    return this.#free > 0 && !isPaused;
  }

  /** Takes the reports for a lease request. The request may wait long, so the rest goes apart. */
  #takeCarried(): Attempt[] {
    const carried = this.#carried.splice(0);
    let size = 0;
    return carried.filter((attempt, index) => {
      size += attempt.reportBytes;
      const fits = index < MAX_REPORTS && size <= MAX_REPORT_BYTES;
      if (!fits) this.worker.outbox.add(attempt);
      return fits;
    });
  }

  #body(): Schemas["LeaseRequest"] {
    const { options, name } = this.worker;
    const min = Math.min(this.min, this.#free);
    return {
      types: [...this.handler.types],
      max: this.#free,
      ...(min > 1 ? { min } : {}),
      wait_seconds: options.waitSeconds ?? 20,
      max_pause_seconds: options.maxPauseSeconds ?? 10,
      worker: name,
      request_id: crypto.randomUUID(),
      ...(options.leaseSeconds === undefined ? {} : { lease_seconds: options.leaseSeconds }),
      reports: this.#sent.map((attempt) => attempt.carried()),
    };
  }

  /**
   * Sends a request until it is answered. Resolves to undefined if the worker stops and the server
   * has not answered for a minute. Throws the error of a request that is wrong.
   */
  async #send(body: Schemas["LeaseRequest"]): Promise<ApiLeases | undefined> {
    const { stopping, outbox, client, options } = this.worker;
    const since = clock();
    for (let failures = 1; ; failures++) {
      if (failures > 1 && stopping.aborted) {
        // It gets the leases of the request that it repeats, and no others.
        body.max = 0;
        delete body.min;
      }
      try {
        const wait = body.max ? (body.wait_seconds ?? 0) : 0;
        const answer = json(await client.http.send("POST", "/v1/leases", { body, wait }));
        this.#repeatedFor = failures > 1 ? clock() - since : 0;
        return answer as ApiLeases;
      } catch (error) {
        const status = error instanceof ProblemError ? error.status : 0;
        if (this.#sent.length > 0 && (status === 400 || status === 413)) {
          // One of the reports is wrong: each gets an answer of its own.
          for (const attempt of this.#sent) outbox.add(attempt, true);
          this.#sent = [];
          body.reports = [];
          continue;
        }
        const isHopeless = stopping.aborted && clock() - since > MAX_REPORT_SECONDS;
        if (isHopeless || !(isTransient(error) || status === 500)) {
          for (const attempt of this.#sent) outbox.add(attempt);
          this.#sent = [];
          if (isHopeless) return undefined;
          throw error;
        }
        let wait = backoff(failures, MIN_POLL_SECONDS);
        if (error instanceof ProblemError && error.retryAfter) {
          wait += Math.min(error.retryAfter, MAX_PAUSE_SECONDS);
        }
        options.logger?.info(`no lease: ${error}; again in ${wait.toFixed(1)} s`);
        await (stopping.aborted ? pause(Math.min(wait, 1)) : pause(wait, stopping));
      }
    }
  }

  #begin(attempt: Attempt): void {
    this.attempts.add(attempt);
    this.#running += 1;
    attempt.job.onChange = () => this.#hasten(attempt);
    this.#schedule(attempt);
    this.#watch(attempt);
    void this.#attempt(attempt);
  }

  /** Aborts an attempt when its lease is over by this worker's record, however a heartbeat hangs. */
  #watch(attempt: Attempt): void {
    const rest = (attempt.lostAt - clock()) * 1000;
    const end = () => {
      if (attempt.isFinished) return;
      if (attempt.lostAt > clock()) {
        this.#watch(attempt);
        return;
      }
      // Another worker may have the job.
      attempt.isLost = true;
      clearTimeout(attempt.timer);
      attempt.job.abort("lease_lost");
    };
    attempt.endTimer = setTimeout(end, Math.min(Math.ceil(Math.max(0, rest)), 2 ** 31 - 1));
  }

  async #attempt(attempt: Attempt): Promise<void> {
    const { stopping, options, outbox } = this.worker;
    let outcome: Outcome | undefined;
    if (stopping.aborted) {
      outcome = { status: "released", message: "its worker stopped before it began" };
    } else {
      const ran = await this.handler.run(attempt.job);
      outcome = ran === LATER ? { status: "failed", message: "only a push reports later" } : ran;
      const { job } = attempt;
      const text = `${job.type} ${job.id} attempt ${job.attempt} ${outcome?.status ?? "lost"}`;
      if (outcome === undefined || outcome.status === "failed") {
        options.logger?.warn(outcome?.message ? `${text}: ${outcome.message}` : text);
      } else {
        options.logger?.info(text);
      }
    }
    if (attempt.beating !== undefined && outcome !== undefined) {
      // A heartbeat that came after the report would be refused, and its lines lost.
      const wait = new AbortController();
      await Promise.race([attempt.beating, pause(MAX_BEAT_WAIT_SECONDS, wait.signal)]);
      wait.abort();
    }
    attempt.isFinished = true;
    this.#running -= 1;
    if (outcome === undefined) {
      this.settled(attempt);
      return;
    }
    attempt.finish(outcome);
    if (this.isPolling || stopping.aborted) {
      outbox.add(attempt);
    } else {
      this.#carried.push(attempt);
    }
    this.#wake();
  }

  /** Sends a heartbeat within a second: the attempt has something to show. */
  #hasten(attempt: Attempt): void {
    const due = attempt.lastBeat + FLUSH_SECONDS;
    if (due < attempt.nextBeat && !attempt.isFinished) {
      attempt.nextBeat = due;
      if (attempt.beating === undefined) this.#schedule(attempt);
    }
  }

  #schedule(attempt: Attempt): void {
    clearTimeout(attempt.timer);
    if (attempt.isReported || attempt.isLost) return;
    const wait = Math.max(0, attempt.nextBeat - clock()) * 1000;
    const beat = async () => {
      const beating = this.#beat(attempt);
      attempt.beating = beating;
      const again = await beating;
      attempt.beating = undefined;
      if (again) this.#schedule(attempt);
    };
    attempt.timer = setTimeout(() => void beat(), Math.min(wait, 2 ** 31 - 1));
  }

  /** Sends a heartbeat, and returns whether there is to be another. */
  async #beat(attempt: Attempt): Promise<boolean> {
    const { job } = attempt;
    const { client, options } = this.worker;
    const sentAt = clock();
    attempt.lastBeat = sentAt;
    attempt.nextBeat = sentAt + attempt.leaseSeconds / 3;
    const shown = attempt.isFinished ? {} : job.takeChanges();
    const lease = options.leaseSeconds === undefined ? {} : { lease_seconds: options.leaseSeconds };
    const body: Schemas["Heartbeat"] = { attempt: job.attempt, ...shown, ...lease };
    const headers = { authorization: `Bearer ${attempt.token}` };
    // Half of what is left, so that one that hangs leaves time for another.
    const rest = attempt.lostAt - sentAt;
    const most = attempt.isFinished ? Number.POSITIVE_INFINITY : Math.max(rest, 0.05);
    const timeout = Math.min(client.http.timeout, most, Math.max(rest / 2, MIN_BEAT_SECONDS));
    try {
      const target = `${attempt.target}/heartbeat`;
      const answer = await client.http.send("POST", target, { body, headers, timeout });
      attempt.lostAt = sentAt + attempt.leaseSeconds;
      if ((json(answer) as Schemas["Beat"]).cancel) job.abort("cancelled");
      return true;
    } catch (error) {
      const status = error instanceof ProblemError ? error.status : 0;
      if ((status === 404 || status === 409) && !isTransient(error)) {
        // The report was recorded, or the attempt is over.
        if (!attempt.isFinished) job.abort("lease_lost");
        return false;
      }
      if (!isTransient(error)) {
        options.logger?.warn(`a heartbeat of ${job.id} was refused: ${error}`);
        // What it showed is wrong, and the lease lasts.
        if (status === 400 || status === 413) return true;
      }
      job.putBack(shown);
      const left = attempt.lostAt - clock();
      const isOver = attempt.isFinished || left <= 0;
      attempt.nextBeat = clock() + (isOver ? 1 : Math.min(1, Math.max(left / 2, 0.05)));
      return true;
    }
  }
}

/** Reports that no lease request carries: they go together in requests of their own. */
class Outbox {
  #pending: { attempt: Attempt; alone: boolean }[] = [];
  #isSending = false;

  constructor(readonly worker: Worker) {}

  add(attempt: Attempt, alone = false): void {
    this.#pending.push({ attempt, alone });
    if (!this.#isSending) {
      this.#isSending = true;
      // What ends in the same turn goes in the same request.
      setTimeout(() => void this.#run(), 0);
    }
  }

  async #run(): Promise<void> {
    let failures = 0;
    while (this.#pending.length > 0) {
      failures = (await this.#send(this.#take())) ? 0 : failures + 1;
      if (failures > 0) await pause(backoff(failures));
    }
    this.#isSending = false;
  }

  #take(): Attempt[] {
    const batch: Attempt[] = [];
    let size = 0;
    for (const { attempt, alone } of this.#pending) {
      size += attempt.reportBytes;
      const isFull = batch.length === MAX_REPORTS || size > MAX_REPORT_BYTES || alone;
      if (batch.length > 0 && isFull) break;
      batch.push(attempt);
      if (alone) break;
    }
    this.#pending.splice(0, batch.length);
    return batch;
  }

  /** Sends reports. Resolves to false if the server is to be left alone for a while. */
  async #send(batch: Attempt[]): Promise<boolean> {
    const { worker } = this;
    const { http } = worker.client;
    try {
      const [first] = batch;
      if (batch.length === 1 && first !== undefined) {
        const headers = { authorization: `Bearer ${first.token}` };
        await http.send("POST", first.target, { body: first.report, headers });
        return worker.answered(first, 200);
      }
      const reports = batch.map((attempt) => attempt.carried());
      const body = { max: 0, worker: worker.name, reports };
      const answer = json(await http.send("POST", "/v1/leases", { body })) as ApiLeases;
      const taken = batch.map((attempt, index) => {
        const { status, error } = answer.reports[index] ?? { status: 503 };
        const refused = error ? problem(status, error as ProblemDocument) : undefined;
        return worker.answered(attempt, status, refused);
      });
      return taken.every(Boolean);
    } catch (error) {
      const status = error instanceof ProblemError ? error.status : 503;
      if (batch.length > 1 && (status === 400 || status === 413)) {
        for (const attempt of batch) this.add(attempt, true);
        return true;
      }
      const taken = batch.map((attempt) => worker.answered(attempt, status, error));
      return taken.every(Boolean);
    }
  }
}
