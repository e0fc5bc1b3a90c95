// Enqueues, leases and reports with the client of hey-api.
import { client } from "./hey/client.gen";
import { enqueue, lease, listJobs, putJobType, report } from "./hey/sdk.gen";

client.setConfig({ baseUrl: process.argv[2] ?? "" });
const put = await putJobType({ path: { type: "hey" }, body: { queue: "default" } });
if (put.data?.queue !== "default") throw new Error(JSON.stringify(put.error));
const job = await enqueue({
  body: { type: "hey", data: { n: [1, null] }, attributes: { region: "east" }, priority: 7 },
});
if (job.data === undefined) throw new Error(JSON.stringify(job.error));
const found = await listJobs({ query: { type: "hey", attribute: { region: "east" } } });
if (found.data?.jobs[0]?.id !== job.data.id) throw new Error(JSON.stringify(found.error));
const leased = await lease({ body: { types: ["hey"], wait_seconds: 20 } });
const first = leased.data?.leases[0];
if (first === undefined) throw new Error(JSON.stringify(leased.error));
const reported = await report({
  path: { type: "hey", id: first.job.id },
  body: { status: "succeeded", attempt: first.attempt, result: { sum: 3 } },
});
if (reported.data?.state !== "succeeded") throw new Error(JSON.stringify(reported.error));
console.log("hey-api: enqueued, leased, reported", first.job.id);
