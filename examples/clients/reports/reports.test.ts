import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
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

test("the program enqueues, and works until SIGTERM", async (t) => {
  const server = await DevServer.start();
  t.after(() => server.stop());
  const run = (...words: string[]) => {
    const program = new URL("reports.js", import.meta.url).pathname;
    const env = { ...process.env, TIDEGATE_URL: server.url, TIDEGATE_TOKEN: "" };
    const child = spawn(process.execPath, [program, ...words], { env, stdio: "inherit" });
    t.after(() => child.kill("SIGKILL"));
    return { child, ended: once(child, "exit") };
  };
  assert.deepEqual(await run("start", "june").ended, [0, null]);
  const { child, ended } = run("work");
  const summed = async () => (await server.jobs(summary.name))[0];
  const job = await waitUntil(summed, 60);
  assert.deepEqual(await job.result(60), { succeeded: 500 });
  child.kill("SIGTERM");
  assert.deepEqual(await ended, [0, null]);
});
