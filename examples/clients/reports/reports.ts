/**
 * 500 reports of one run, and one summary when all of them have ended: `node reports.js start RUN`
 * enqueues, `node reports.js work` works until SIGTERM.
 *
 * A trigger makes a job of type `check` from each end of a report. The checks of one run share a
 * unique key, so many ends make few checks, and the last end always makes one. The summary has the
 * run's name as its id, so several checks make one summary.
 */

import { Client, jobType, Worker } from "tidegate";
import { z } from "zod";

const report = jobType("report", z.object({ run: z.string(), customer: z.number() }));
const check = jobType("check", z.object({ run: z.string() }));
export const summary = jobType("summary", z.object({ run: z.string() }));

export function reports(client: Client): Worker {
  const worker = new Worker({ client });
  const key = { $expr: "data.attributes.run" };
  worker.config.trigger("report-ended", {
    job_types: [report.name],
    enqueue: { type: check.name, data: { run: key }, unique: { key, while: "scheduled" } },
  });
  const config = { attributes: { run: "/run" } };
  worker.handle(report, { concurrency: 20, config }, async ({ customer }, job) => {
    job.progress(50, `customer ${customer}`);
    return { pages: 1 + (customer % 7) };
  });
  worker.handle(check, { config: { retention_seconds: 3600 } }, async ({ run }) => {
    const left = { type: report.name, "attribute[run]": run, state: "scheduled,running", limit: 1 };
    for await (const { id } of client.jobs(left)) return `${id} has not ended`;
    await client.enqueue(summary, { run }, { id: run });
    return "all have ended";
  });
  worker.handle(summary, { config: {} }, async ({ run }) => {
    const states: Record<string, number> = {};
    const all = { type: report.name, "attribute[run]": run, limit: 1000 };
    for await (const { state } of client.jobs(all)) states[state] = (states[state] ?? 0) + 1;
    return states; // send it to the people who wait for it
  });
  return worker;
}

export async function start(client: Client, run: string): Promise<void> {
  const jobs = Array.from({ length: 500 }, (_, customer) => ({
    type: report.name,
    data: { run, customer },
    options: { id: `${run}:${customer}` }, // a second start makes no second report
  }));
  await client.enqueueMany(jobs);
}

const [, , command, run = new Date().toISOString().slice(0, 10)] = process.argv;
if (command === "start" || command === "work") {
  const client = new Client();
  const worker = reports(client);
  await worker.apply();
  await (command === "work" ? worker.run() : start(client, run));
}
