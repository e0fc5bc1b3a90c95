/**
 * The agent of the conformance kit: it does with this client what the driver requests.
 *
 * See clients/conformance/README.md for the requests.
 */

import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { createInterface } from "node:readline";
import * as tidegate from "./src/index.js";
import { nodeHandler } from "./src/node.js";
import { DevServer, runInPlace } from "./src/testing.js";

// biome-ignore lint/suspicious/noExplicitAny: requests are the driver's JSON
type Any = any;

const client = new tidegate.Client({
  timeout: Number(process.env.CONFORMANCE_CLIENT_TIMEOUT ?? 30),
});
const runs: { job: string; attempt: number; aborted?: string }[] = [];
const callbacks: tidegate.Callback[] = [];
const receivers: Server[] = [];
let worker: tidegate.Worker | undefined;
let held: tidegate.Plan | undefined;
const sleep = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));
const TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const logger = { info: console.error, warn: console.error };

/** Does what the job's data says. */
async function behave(given: Any, job: tidegate.JobContext): Promise<unknown> {
  const run: (typeof runs)[number] = { job: job.id, attempt: job.attempt };
  runs.push(run);
  const data = given ?? {};
  switch (data.do ?? "echo") {
    case "echo":
      return data.value;
    case "fail":
      throw new Error(data.message, { cause: new Error(data.cause) });
    case "crash": {
      const nothing: Any = undefined;
      return nothing.crash();
    }
    case "permanent":
      throw new tidegate.PermanentError(data.message, data.details);
    case "snooze":
      if (job.attempt === 1) {
        const until = data.instant ? new Date(Date.now() + data.seconds * 1000) : data.seconds;
        throw new tidegate.Snooze(until, "not yet");
      }
      return `after ${job.attempt} attempts`;
    case "release":
      if (job.attempt === 1) throw new tidegate.Release();
      return `after ${job.attempt} attempts`;
    case "sleep":
      await sleep(data.seconds);
      return "slept";
    case "until_aborted":
      if (job.attempt > 1) return data.later;
      try {
        for (let n = 0; n < 120; n++) {
          if (data.beats) job.progress(1);
          await job.sleep(0.5);
        }
        return null;
      } catch (error) {
        run.aborted = (error as tidegate.JobAbortedError).reason;
        throw error;
      }
    case "show":
      job.progress(40, "half");
      job.log("printed", "warn", { pages: 3 });
      await sleep(data.seconds);
      job.log("done");
      return "shown";
    case "checkpoint":
      if (job.checkpoint !== undefined) return job.checkpoint;
      job.saveCheckpoint({ page: 40 });
      throw new Error("again");
    case "large":
      return "x".repeat(data.bytes);
    case "trace":
      await client.enqueue(data.type, null, { id: data.child });
      return job.traceparent;
    default:
      throw new tidegate.PermanentError(`no behaviour ${data.do}`);
  }
}

function configOf(request: Any): tidegate.Config {
  const config = new tidegate.Config();
  const { queues, job_types, schedules, triggers } = request.config;
  for (const [name, settings] of Object.entries<Any>(queues ?? {})) config.queue(name, settings);
  for (const [name, settings] of Object.entries<Any>(job_types ?? {})) {
    config.jobType(name, settings);
  }
  for (const [name, settings] of Object.entries<Any>(schedules ?? {})) {
    config.schedule(name, settings);
  }
  for (const [name, settings] of Object.entries<Any>(triggers ?? {})) {
    config.trigger(name, settings);
  }
  return config;
}

function shown(plan: tidegate.Plan): unknown {
  const steps = plan.steps.map(({ action, kind, name, differences }) => ({
    action,
    kind,
    name,
    fields: differences.map(({ field }) => field),
  }));
  return { text: String(plan), steps };
}

function jobOf({ id, type, state, phase, isNew }: tidegate.Job): unknown {
  return { id, type, state, phase, is_new: isNew };
}

function workerOf(request: Any): tidegate.Worker {
  const name = request.name === undefined ? {} : { name: request.name };
  const grace = request.grace === undefined ? {} : { graceSeconds: request.grace };
  worker = new tidegate.Worker({ client, waitSeconds: 10, logger, ...name, ...grace });
  const options = {
    concurrency: request.concurrency ?? 1,
    auto: request.auto ?? false,
    min: request.min ?? 1,
  };
  worker.handle(request.types as string[], options, behave);
  return worker;
}

async function pushStart(request: Any): Promise<unknown> {
  const push = new tidegate.Push({ secrets: request.secrets });
  const later = (_: unknown, job: tidegate.PushJob) => {
    callbacks.push(job.callback);
    return tidegate.LATER;
  };
  const background = request.background ?? false;
  push.handle(request.types as string[], { background }, request.later ? later : behave);
  const server = createServer(nodeHandler(push));
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  receivers.push(server);
  return { port: (server.address() as AddressInfo).port };
}

async function verify(request: Any): Promise<boolean> {
  try {
    await tidegate.verify(request.secrets, request.headers, request.body);
    return true;
  } catch (error) {
    if (error instanceof tidegate.RefusedError) return false;
    throw error;
  }
}

async function forged(request: Any): Promise<number> {
  const init = { method: "POST", body: '{"id": "x", "type": "resize"}' };
  return (await fetch(`http://127.0.0.1:${request.port}/`, init)).status;
}

/** Uses the test kit as an application's test does. */
async function kit(): Promise<unknown> {
  const server = await DevServer.start();
  try {
    const remind = (to: unknown, job: tidegate.JobContext) => {
      if (to === "bob" && job.attempt === 1) throw new Error("no answer");
      return `${to} ${job.attempt}`;
    };
    const note = async (_: unknown, job: tidegate.JobContext) => {
      const options = { id: "noted", delay_seconds: 604800 };
      await server.client.enqueue("reminder", "eve", options);
      return { attempt: job.attempt, page: (job.checkpoint as Any).page };
    };
    const own = new tidegate.Worker({ client: server.client });
    const config = { retry: { strategy: "exponential", config: { base_seconds: 5 } } } as const;
    own.handle("reminder", { config }, remind);
    const began = await server.freeze();
    await server.apply(own);
    await server.client.enqueue("reminder", "ann", { delay_seconds: 604800, priority: 7 });
    await server.client.enqueue("reminder", "bob", { delay_seconds: 604800 });
    const wanted = { data: "ann", priority: 7, count: 1 };
    const enqueued = await server.assertEnqueued("reminder", wanted);
    const missing = await server.assertEnqueued("reminder", { data: "ann", priority: 6 }).then(
      () => "nothing",
      (error: unknown) => String(error),
    );
    const statuses = async () => (await server.drain(own)).map((run) => run.status);
    const before = await statuses();
    const moved = ((await server.advance({ days: 7 })).getTime() - began.getTime()) / 1000;
    const after = (await statuses()).sort().reverse();
    await server.advance(60);
    const retried = await statuses();
    const headers = { traceparent: TRACE };
    const job = { attempt: 3, headers, checkpoint: { page: 4 } };
    const noted = await runInPlace("reminder", note, null, job);
    await server.assertEnqueued("reminder", { headers, count: 1 });
    return {
      enqueued: enqueued.length,
      missing,
      before,
      after,
      retried,
      noted,
      moved_seconds: moved,
      in_place: await runInPlace("reminder", remind, "ann", { attempt: 2 }),
    };
  } finally {
    await server.stop();
  }
}

async function perform(request: Any): Promise<unknown> {
  const { op, type, job } = request;
  switch (op) {
    case "enqueue": {
      const key = request.key === undefined ? {} : { idempotencyKey: request.key };
      return jobOf(await client.enqueue(type, request.data, { ...request.options, ...key }));
    }
    case "enqueue_many": {
      const data = request.bytes === undefined ? request.data : "x".repeat(request.bytes);
      const repeated = Array.from({ length: request.repeat ?? 0 }, () => ({ type, data }));
      const key = request.key === undefined ? {} : { idempotencyKey: request.key };
      const items = await client.enqueueMany([...(request.jobs ?? []), ...repeated], key);
      return items.map((item) => (item.job ? jobOf(item.job) : { code: item.error?.code }));
    }
    case "job":
      return jobOf(await client.job(job));
    case "result":
      return client.result(type, job, request.wait);
    case "cancel":
      return jobOf(await client.cancel(type, job));
    case "replay":
      return jobOf(await client.replay(type, job));
    case "count": {
      let count = 0;
      for await (const _ of client.jobs({ type, state: request.state, limit: 1000 })) count += 1;
      return count;
    }
    case "attempts": {
      let most = 0;
      for await (const found of client.jobs({ type })) most = Math.max(most, found.raw.attempt);
      return { most };
    }
    case "log":
      return client.log(type, job);
    case "send_event": {
      const id = request.event === undefined ? {} : { id: request.event };
      return client.sendEvent(type, request.source, request.data, id);
    }
    case "stream": {
      const names: string[] = [];
      for await (const change of client.stream({ type })) {
        names.push(change.name);
        if (names.length === request.names) break;
      }
      return names;
    }
    case "plan":
      return shown(await client.plan(configOf(request), { secrets: request.secrets ?? true }));
    case "apply":
      return shown(await client.apply(configOf(request)));
    case "plan_hold":
      held = await client.plan(configOf(request));
      return null;
    case "plan_apply":
      return held?.apply();
    case "worker_start":
      return workerOf(request).start();
    case "worker_stop":
      return worker?.stop();
    case "worker_wait":
      return worker?.ended();
    case "runs":
      return runs;
    case "runs_count":
      return runs.length;
    case "sleep":
      return sleep(request.seconds);
    case "verify":
      return verify(request);
    case "push_start":
      return pushStart(request);
    case "push_stop":
      for (const server of receivers) server.close();
      return null;
    case "push_forged":
      return forged(request);
    case "callbacks":
      return callbacks.map(({ url }) => url);
    case "callback_succeed": {
      const stored = JSON.parse(JSON.stringify(callbacks[0]));
      return tidegate.Callback.from(stored).succeed(request.result);
    }
    case "kit":
      return kit();
    default:
      throw new Error(`no such request: ${op}`);
  }
}

const KINDS = new Map<unknown, string>([
  [tidegate.JobFailedError, "job_failed"],
  [tidegate.WaitTimeoutError, "wait_timeout"],
  [tidegate.InvalidRequestError, "invalid_request"],
  [tidegate.UnauthorizedError, "unauthorized"],
  [tidegate.ForbiddenError, "forbidden"],
  [tidegate.NotFoundError, "not_found"],
  [tidegate.ConflictError, "conflict"],
  [tidegate.PreconditionFailedError, "precondition_failed"],
  [tidegate.UnavailableError, "unavailable"],
  [tidegate.ServerFaultError, "server_fault"],
  [tidegate.UnreachableError, "unreachable"],
]);

function errorOf(error: Any): unknown {
  const kind = KINDS.get(error?.constructor) ?? error?.name;
  const { code, status, field, state, reason, jobMessage, retryable, retryAfter } = error;
  const text = String(error?.stack ?? error);
  const times = { retryable, retry_after: retryAfter };
  return { kind, code, status, field, state, reason, message: jobMessage, text, ...times };
}

async function answer(request: Any): Promise<void> {
  const reply = await perform(request).then(
    (ok) => ({ id: request.id, ok: ok ?? null }),
    (error: unknown) => ({ id: request.id, error: errorOf(error) }),
  );
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}

const input = createInterface({ input: process.stdin });
input.on("line", (line) => {
  const request = JSON.parse(line);
  if (request.op === "worker_run") {
    void workerOf(request)
      .run()
      .then(() => process.stdin.destroy());
  } else {
    void answer(request);
  }
});
