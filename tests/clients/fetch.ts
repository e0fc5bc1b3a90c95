// Enqueues, leases and reports with the types of openapi-typescript.
import createClient from "openapi-fetch";
import type { paths } from "./schema";

const client = createClient<paths>({ baseUrl: process.argv[2] ?? "" });
const type = { path: { type: "fetch" } };
const put = await client.PUT("/v1/job-types/{type}", { params: type, body: { queue: "default" } });
if (put.data?.queue !== "default") throw new Error(JSON.stringify(put));
const job = await client.POST("/v1/jobs", {
  body: { type: "fetch", data: { n: [1, null] }, attributes: { region: "east" }, priority: 7 },
});
if (job.data === undefined) throw new Error(JSON.stringify(job));
const found = await client.GET("/v1/jobs", {
  params: { query: { type: "fetch", attribute: { region: "east" } } },
});
if (found.data?.jobs[0]?.id !== job.data.id) throw new Error(JSON.stringify(found));
const leased = await client.POST("/v1/leases", { body: { types: ["fetch"], wait_seconds: 20 } });
const lease = leased.data?.leases[0];
if (lease === undefined) throw new Error(JSON.stringify(leased));
const reported = await client.POST("/v1/jobs/{type}/{id}", {
  params: { path: { type: "fetch", id: lease.job.id } },
  body: { status: "succeeded", attempt: lease.attempt, result: { sum: 3 } },
});
if (reported.data?.state !== "succeeded") throw new Error(JSON.stringify(reported));
console.log("openapi-typescript: enqueued, leased, reported", lease.job.id);
