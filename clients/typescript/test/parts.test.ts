import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import type { Server } from "node:http";
import { createRequire } from "node:module";
import type { AddressInfo } from "node:net";
import { test } from "node:test";
import { z } from "zod";
import { problem } from "../src/errors.js";
import { Handler, LATER } from "../src/handler.js";
import { backoff } from "../src/http.js";
import {
  Client,
  Config,
  ConflictError,
  JobContext,
  JobFailedError,
  jobType,
  PermanentError,
  Push,
  RefusedError,
  Snooze,
  UnavailableError,
  UnreachableError,
  verify,
  WaitTimeoutError,
  Worker,
} from "../src/index.js";
import { lambdaHandler } from "../src/lambda.js";
import { nodeHandler } from "../src/node.js";
import { runInPlace } from "../src/testing.js";

const raw = { id: "1", type: "resize", max_attempts: 3 };

function signed(body: string, secret = "s"): Record<string, string> {
  const at = String(Math.floor(Date.now() / 1000));
  const signature = createHmac("sha256", secret).update(`m.${at}.${body}`).digest("base64");
  return {
    "webhook-id": "m",
    "webhook-timestamp": at,
    "webhook-signature": `v1,${signature}`,
  };
}

function pushed(data: unknown): string {
  const callback = { url: "http://127.0.0.1:9/v1/jobs/resize/1", token: "t" };
  return JSON.stringify({ ...raw, attempt: 1, attributes: {}, data, callback });
}

test("errors have a class for each reaction", () => {
  assert.ok(problem(409, { code: "job_failed" }) instanceof JobFailedError);
  assert.ok(problem(409, { code: "id_taken" }) instanceof ConflictError);
  assert.ok(problem(408, { code: "wait_timeout" }) instanceof WaitTimeoutError);
  assert.ok(problem(429, {}) instanceof UnavailableError);
  assert.equal(problem(404, { code: "job_not_found" }).name, "NotFoundError");
  assert.equal(problem(404, { code: "job_not_found" }).retryable, false);
  assert.equal(problem(409, { code: "concurrent_update" }).retryable, true);
  assert.equal(problem(429, {}).retryable, true);
  assert.equal(new UnreachableError("no answer").retryable, true);
  assert.deepEqual(
    [new Snooze(3).retryable, new UnreachableError("").retryAfter],
    [false, undefined],
  );
});

test("a handler in place gets and returns JSON", async () => {
  const at = new Date(0);
  const both = (data: unknown, job: JobContext) => [data, at, job.attempt, job.checkpoint];
  const found = await runInPlace("resize", both, at, { attempt: 2, checkpoint: { page: 3 } });
  assert.deepEqual(found, [at.toISOString(), at.toISOString(), 2, { page: 3 }]);
  await assert.rejects(
    runInPlace("resize", () => () => 1, null),
    /not a JSON value/,
  );
});

test("a report has the stacks of an error and its causes", async () => {
  const inner = new AggregateError([new Error("no ink"), "no paper"], "several");
  const outcome = await new Handler(["resize"], () => {
    throw new Error("cannot print", { cause: inner });
  }).run(new JobContext(raw, 1));
  assert.ok(typeof outcome === "object");
  const { trace } = outcome.error as { trace: string };
  for (const text of ["cannot print", "caused by AggregateError: several", "no ink", "no paper"]) {
    assert.ok(trace.includes(text), trace);
  }
  assert.match(trace, /parts\.test/);
});

test("a backoff is bounded and grows", () => {
  for (const tries of [1, 2, 5, 100]) {
    const span = Math.min(10, 0.1 * 2 ** (tries - 1));
    const found = backoff(tries);
    assert.ok(span / 2 <= found && found <= span);
  }
});

test("data that the schema refuses fail without a retry", async () => {
  const mail = jobType("resize", z.strictObject({ to: z.string(), pages: z.number().default(1) }));
  const handler = new Handler([mail], (data: { to: string; pages: number }) => data);
  const run = (data: unknown) => handler.run(new JobContext({ ...raw, data }, 1));
  assert.deepEqual(await run({ to: "ann" }), {
    status: "succeeded",
    result: { to: "ann", pages: 1 },
  });
  const refused = await run({ to: "ann", pagse: 2 });
  assert.ok(typeof refused === "object" && refused.retryable === false);
  assert.match(refused.message ?? "", /the data cannot be read/);
});

test("reports fit the bounds of the server", async () => {
  const run = (error: unknown) =>
    new Handler(["resize"], () => {
      throw error;
    }).run(new JobContext(raw, 1));
  const long = await run(new Error("ä".repeat(5000)));
  assert.ok(typeof long === "object" && Buffer.byteLength(long.message ?? "") <= 4096);
  assert.ok(JSON.stringify(long.error).length <= 16 << 10);
  const large = await run(new PermanentError("no", "x".repeat(20_000)));
  assert.ok(typeof large === "object" && JSON.stringify(large.error).length <= 16 << 10);
  const job = new JobContext(raw, 1);
  assert.throws(() => job.saveCheckpoint("x".repeat(70_000)), RangeError);
  assert.throws(() => job.progress(Number.NaN), RangeError);
  for (let line = 0; line < 1500; line++) job.log(String(line));
  assert.equal(job.takeChanges().log?.length, 1000);
});

test("mistakes of a registration are errors", () => {
  const worker = new Worker({ client: new Client({ url: "http://127.0.0.1:9" }) });
  worker.handle("a", () => null);
  assert.throws(() => worker.handle("a", () => null), /handler already/);
  assert.throws(() => worker.handle("b", { concurrency: 1.5 }, () => null), /concurrency/);
  assert.throws(() => new Push({ secrets: [] }), /at least one/);
  assert.throws(() => new Push({ secrets: "whsec_?" }), /base64/);
  const config = new Config().queue("a", { concurrency: 1 }).queue("a", { concurrency: 1 });
  assert.throws(() => config.queue("a", { concurrency: 2 }), /declared twice/);
  for (const url of ["ftp://a", "http://u:p@a", "http://a?b=c"]) {
    assert.throws(() => new Client({ url }), TypeError);
  }
});

test("the oldest Node is the same wherever it is named", () => {
  // This file is dist-test/test/parts.test.js when it runs.
  const folder = new URL("../../", import.meta.url);
  const read = (name: string) => readFileSync(new URL(name, folder), "utf8");
  type Manifest = { engines: { node: string } };
  const { engines } = JSON.parse(read("package.json")) as Manifest;
  const lock = JSON.parse(read("package-lock.json")) as { packages: Record<string, Manifest> };
  assert.deepEqual(lock.packages[""]?.engines, engines);
  for (const file of ["README.md", "../README.md", "../check"]) {
    const named = [...read(file).matchAll(/Node (\d[\d.]*\d)/g)].map((found) => found[1]);
    assert.ok(named.length > 0, file);
    for (const version of named) assert.equal(version, engines.node.replace(">=", ""), file);
  }
});

test("a push answers by fetch", async () => {
  const push = new Push({ secrets: ["new", "s"], maxBodyBytes: 2000 });
  push.handle("resize", (data, job) => {
    if (data === "later") return LATER;
    return { data, attempt: job.attempt };
  });
  const send = (body: string, headers = signed(body), method = "POST") =>
    push.fetch(
      new Request("http://a/", { method, headers, ...(method === "GET" ? {} : { body }) }),
    );
  const done = await send(pushed({ width: 7 }));
  assert.deepEqual(await done.json(), { data: { width: 7 }, attempt: 1 });
  assert.equal((await send(pushed("later"))).status, 202);
  assert.equal((await send("{}", signed("{ }"))).status, 401);
  assert.equal((await send("x".repeat(3000))).status, 413);
  assert.equal((await send("", {}, "GET")).status, 405);
  assert.equal((await send(pushed(1).replace("resize", "crop"))).status, 404);
});

test("a push answers in Express, before its parsers of bodies", async (t) => {
  const push = new Push({ secrets: "s" });
  push.handle("resize", (data) => (data === "later" ? LATER : { data }));
  // The package has no types.
  const express = createRequire(import.meta.url)("express");
  const app = express();
  app.post("/jobs", nodeHandler(push));
  app.use(express.json());
  app.post("/other", (request: { body: unknown }, response: { json(body: unknown): void }) => {
    response.json(request.body);
  });
  const server: Server = app.listen(0, "127.0.0.1");
  t.after(() => server.close());
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  const send = (body: string, headers: Record<string, string>, path = "jobs") =>
    fetch(`http://127.0.0.1:${port}/${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body,
    });
  const text = pushed({ width: "ä" });
  const done = await send(text, signed(text));
  assert.deepEqual([done.status, await done.json()], [200, { data: { width: "ä" } }]);
  assert.equal((await send(pushed("later"), signed(pushed("later")))).status, 202);
  assert.equal((await send(text, {})).status, 401);
  assert.deepEqual(await (await send('{"a": 1}', {}, "other")).json(), { a: 1 });
});

test("a push answers on Lambda", async () => {
  const push = new Push({ secrets: "s" }).handle("resize", (data) => ({ data }));
  const handler = lambdaHandler(push);
  const text = pushed({ width: "ä" });
  const headers = signed(text);
  const done = await handler({ httpMethod: "POST", headers, body: text });
  assert.deepEqual([done.statusCode, JSON.parse(done.body)], [200, { data: { width: "ä" } }]);
  const event = { headers, body: Buffer.from(text).toString("base64"), isBase64Encoded: true };
  const requestContext = { http: { method: "POST" } };
  assert.equal((await handler({ ...event, requestContext })).statusCode, 200);
  assert.equal((await handler({ httpMethod: "POST", body: text })).statusCode, 401);
});

test("a signature of another secret, body or time is refused", async () => {
  const headers = signed("{}");
  await verify("s", headers, "{}");
  await verify(["other", "s"], new Headers(headers), new TextEncoder().encode("{}"));
  await assert.rejects(verify("t", headers, "{}"), RefusedError);
  await assert.rejects(verify("s", headers, "{ }"), RefusedError);
  await assert.rejects(verify("s", headers, "{}", { now: 0 }), RefusedError);
});
