/**
 * Enqueues in transactions of a real Postgres, whose role has the documented rights.
 *
 * `clients/conformance/postgres.py` runs it next to Postgres and a server. pg reads its address from the
 * environment.
 */

import assert from "node:assert/strict";
import { test } from "node:test";
import pg from "pg";
import { Client, enqueueIn, NotFoundError } from "./src/index.js";

const LETTER = { to: "ann", text: "50 % \"quoted\" 'twice' \\ ä" };

async function connected(action: (connection: pg.Client) => Promise<void>): Promise<void> {
  const connection = new pg.Client();
  await connection.connect();
  try {
    await action(connection);
  } finally {
    await connection.end();
  }
}

test("a job exists if and only if its transaction commits", async () => {
  const client = new Client();
  await connected(async (connection) => {
    await connection.query("BEGIN");
    const options = { run_at: new Date("2100-01-02T03:04:05.678Z"), priority: 7 };
    const kept = await enqueueIn(connection, "letter", LETTER, options);
    const later = await enqueueIn(connection, "letter", null, { delay_seconds: 86_400.5 });
    await connection.query("COMMIT");
    await connection.query("BEGIN");
    const undone = await enqueueIn(connection, "letter");
    await connection.query("ROLLBACK");

    const job = await client.job(kept);
    assert.deepEqual([job.raw.data, job.raw.priority], [LETTER, 7]);
    assert.deepEqual([job.raw.due_at, job.phase], ["2100-01-02T03:04:05.678Z", "scheduled"]);
    assert.equal((await client.job(later)).phase, "scheduled");
    await assert.rejects(client.job(undone), NotFoundError);
  });
});

test("an error of the database is that of the driver", async () => {
  await connected(async (connection) => {
    await assert.rejects(enqueueIn(connection, "none"), (error: unknown) => {
      assert.ok(error instanceof pg.DatabaseError);
      return error.code === "22023" && error.message === "type: there is no job type none";
    });
  });
});
