import assert from "node:assert/strict";
import { test } from "node:test";
import { DevServer, waitUntil } from "tidegate/testing";
import { reports, start, summary } from "./reports.js";

test("500 reports end with one summary", async (t) => {
  const server = await DevServer.start();
  t.after(() => server.stop());
  const worker = reports(server.client);
  await server.apply(worker);
  worker.start();
  await start(server.client, "may");
  await start(server.client, "may");
  const jobs = await waitUntil(async () => {
    const found = await server.jobs(summary.name);
    return found.length > 0 ? found : null;
  }, 60);
  assert.deepEqual(await jobs[0]?.result(60), { succeeded: 500 });
  await worker.stop();
  assert.equal((await server.jobs(summary.name)).length, 1);
});
