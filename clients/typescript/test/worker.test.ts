import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { z } from "zod";
import { type JobContext, JobFailedError, jobType, Snooze, Worker } from "../src/index.js";
import { DevServer, runInPlace, waitUntil } from "../src/testing.js";

let server: DevServer;
before(async () => {
  server = await DevServer.start();
});
after(() => server.stop());

test("a worker runs typed jobs", async () => {
  const letter = jobType("letter", z.object({ to: z.string(), pages: z.number() }));
  const worker = new Worker({ client: server.client, waitSeconds: 5 });
  worker.config.queue("mail", { concurrency: 3 });
  worker.handle(letter, { concurrency: 3, queue: "mail" }, async (data, job) => {
    job.log("printed", "debug", { pages: data.pages });
    return { to: data.to, pages: data.pages * 2 };
  });
  await server.apply(worker);
  worker.start();
  const job = await server.client.enqueue(letter, { to: "ann", pages: 2 });
  assert.deepEqual(await job.result(10), { to: "ann", pages: 4 });
  assert.equal(job.raw.queue, "mail");
  const wrong = await server.client.enqueue("letter", { to: 7 });
  await assert.rejects(wrong.result(10), (error) => {
    assert.ok(error instanceof JobFailedError);
    assert.match(error.jobMessage ?? "", /the data cannot be read/);
    return true;
  });
  await worker.stop();
});

test("the signal of a cancelled job ends its fetch", async () => {
  const worker = new Worker({ client: server.client, leaseSeconds: 3 });
  let began = false;
  worker.handle("fetches", async (_, job) => {
    began = true;
    // It answers after a minute: no job of this type has ended.
    await fetch(`${server.url}/v1/jobs/fetches/${job.id}/result?wait=60`, { signal: job.signal });
  });
  await server.apply(worker);
  worker.start();
  const job = await server.client.enqueue("fetches");
  await waitUntil(() => began);
  await job.cancel();
  await assert.rejects(job.result(10), { state: "cancelled" });
  await worker.stop();
});

test("a stop with a grace aborts what runs longer", async () => {
  const worker = new Worker({ client: server.client, graceSeconds: 0.2 });
  let began = false;
  let reason: unknown;
  worker.handle("slow", { config: { max_attempts: 1 } }, async (_, job) => {
    began = true;
    try {
      await job.sleep(60);
    } finally {
      reason = job.abortReason;
    }
  });
  await server.apply(worker);
  worker.start();
  const job = await server.client.enqueue("slow");
  await waitUntil(() => began);
  await worker.stop();
  assert.equal(reason, "stopping");
  await assert.rejects(job.result(5), { jobMessage: "its worker stopped before it ended" });
});

test("time moves when the test moves it", async () => {
  const own = await DevServer.start();
  const worker = new Worker({ client: own.client });
  const remind = (to: string, job: JobContext) => {
    if (job.attempt === 1) throw new Snooze(3600, "not yet");
    return `${to} ${job.attempt}`;
  };
  worker.handle("reminder", remind);
  await own.freeze();
  await own.apply(worker);
  await own.client.enqueue("reminder", "ann", { run_at: new Date(Date.now() + 7 * 86_400_000) });
  assert.deepEqual(await own.drain(worker), []);
  await own.advance({ days: 8 });
  assert.deepEqual(
    (await own.drain(worker)).map((run) => run.status),
    ["snoozed"],
  );
  await own.advance({ hours: 1 });
  const [run] = await own.drain(worker);
  assert.equal(run?.result, "ann 2");
  await own.assertEnqueued("reminder", { data: "ann", count: 1 });
  await assert.rejects(own.assertEnqueued("reminder", { data: "bob" }), /not at least one/);
  assert.equal(await runInPlace("reminder", remind, "bob", { attempt: 3 }), "bob 3");
  await own.stop();
});
