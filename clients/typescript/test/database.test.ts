/** Enqueues in the transaction of a connection that records what it gets. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { type EnqueueInOptions, enqueueIn, type JobContext, jobType } from "../src/index.js";
import { runInPlace } from "../src/testing.js";

const SQL =
  'SELECT "tidegate".enqueue(type => $1::text, data => $2::text::json, ' +
  "delay => $3::text::interval, run_at => $4::text::timestamptz, options => $5::text::json) AS id";

class Connection {
  readonly calls: { text: string; values: unknown[] }[] = [];

  constructor(
    readonly rows: unknown[] = [{ id: "j1" }],
    readonly error?: Error,
  ) {}

  async query(text: string, values: unknown[]): Promise<{ rows: unknown[] }> {
    this.calls.push({ text, values });
    if (this.error) throw this.error;
    return { rows: this.rows };
  }
}

test("a call has the arguments of the function", async () => {
  const connection = new Connection();
  const invoice = jobType<{ order: number }>("invoice");
  const found = await enqueueIn(
    connection,
    invoice,
    { order: 17 },
    { delay_seconds: 90.5, priority: 7, expires_at: new Date(0), headers: { tenant: "a" } },
  );
  assert.equal(found, "j1");
  const options = { priority: 7, expires_at: "1970-01-01T00:00:00.000Z", headers: { tenant: "a" } };
  assert.equal(connection.calls.length, 1);
  assert.equal(connection.calls[0]?.text, SQL);
  const [type, data, delay, at, rest] = connection.calls[0]?.values ?? [];
  assert.deepEqual([type, data, delay, at], ["invoice", '{"order":17}', "90.500 seconds", null]);
  assert.deepEqual(JSON.parse(rest as string), options);
});

test("a call without options has their defaults", async () => {
  const connection = new Connection();
  await enqueueIn(connection, "invoice");
  const at = new Date("2030-01-02T03:04:05.678Z");
  await enqueueIn(connection, "invoice", null, { run_at: at, schema: "jobs_2" });
  await enqueueIn(connection, "invoice", null, { run_at: "2030-01-02T03:04:05+01:00" });
  assert.deepEqual(connection.calls, [
    { text: SQL, values: ["invoice", "null", null, null, "{}"] },
    {
      text: SQL.replace("tidegate", "jobs_2"),
      values: ["invoice", "null", null, "2030-01-02T03:04:05.678Z", "{}"],
    },
    { text: SQL, values: ["invoice", "null", null, "2030-01-02T03:04:05+01:00", "{}"] },
  ]);
});

test("a wrong argument is named before anything is sent", async () => {
  const connection = new Connection();
  const wrong: [object, RegExp][] = [
    [{ schema: 'a".b' }, /^TypeError: schema: /],
    [{ id: "one" }, /^TypeError: id: /],
    [{ critical: true }, /^TypeError: critical: /],
    [{ idempotencyKey: "k" }, /^TypeError: idempotencyKey: /],
    [{ delay_seconds: -0.1 }, /^TypeError: delay_seconds: /],
    [{ delay_seconds: Number.NaN }, /^TypeError: delay_seconds: /],
    [{ delay_seconds: 1, run_at: new Date(0) }, /^TypeError: delay_seconds: .* run_at/],
    [{ run_at: "2030-01-02T03:04:05" }, /^TypeError: run_at: /],
    [{ run_at: "tomorrow" }, /^TypeError: run_at: /],
    [{ run_at: new Date(-1) }, /^TypeError: run_at: /],
    [{ run_at: new Date(8.64e15) }, /^TypeError: run_at: /],
  ];
  for (const [options, named] of wrong) {
    await assert.rejects(enqueueIn(connection, "invoice", 1, options as EnqueueInOptions), named);
  }
  for (const type of ["", "a b", ".."]) {
    await assert.rejects(enqueueIn(connection, type), /^TypeError: type: /);
  }
  await assert.rejects(
    enqueueIn(connection, "invoice", () => 1),
    /^TypeError: data: /,
  );
  assert.deepEqual(connection.calls, []);
});

test("an error of the database is passed through", async () => {
  const error = new Error("type: there is no job type invoice");
  const failed = enqueueIn(new Connection([], error), "invoice");
  await assert.rejects(failed, (found: unknown) => found === error);
});

test("an answer without a row is an error", async () => {
  await assert.rejects(enqueueIn(new Connection([]), "invoice"), /no row/);
});

test("an enqueue of a handler carries its trace on", async () => {
  const connection = new Connection();
  const handler = async (_data: unknown, job: JobContext) => {
    await enqueueIn(connection, "invoice", 1, { headers: { tenant: "a" } });
    await enqueueIn(connection, "invoice", 1, { headers: { Traceparent: "00-3-4-01" } });
    return job.traceparent;
  };
  await runInPlace("order", handler, null, { headers: { traceparent: "00-1-2-01" } });
  const headers = connection.calls.map(({ values }) => JSON.parse(values[4] as string).headers);
  assert.deepEqual(headers, [
    { tenant: "a", traceparent: "00-1-2-01" },
    { Traceparent: "00-3-4-01" },
  ]);
});
