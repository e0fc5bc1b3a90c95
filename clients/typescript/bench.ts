/**
 * Compares this client's requests per second with those of plain `fetch`.
 *
 *     TIDEGATE_URL=... node dist-test/bench.js [SECONDS]
 *
@@
 */

import { Client, Worker } from "./src/index.js";

const seconds = Number(process.argv[2] ?? 8);
const url = process.env.TIDEGATE_URL ?? "http://127.0.0.1:8080";
const data = { to: "ann@example.com", pages: 3 };
const client = new Client({ url });

async function plain(): Promise<void> {
  const answer = await fetch(`${url}/v1/jobs`, {
    method: "POST",
    headers: { "content-type": "application/json", "idempotency-key": crypto.randomUUID() },
    body: JSON.stringify({ type: "bench", data }),
  });
  const job = (await answer.json()) as { id: string };
  if (answer.status !== 201 || !job.id) throw new Error(JSON.stringify(job));
}

async function ours(): Promise<void> {
  const job = await client.enqueue("bench", data);
  if (!job.isNew) throw new Error("the job is not new");
}

/** The requests per second of both, by the mean time of a request. */
async function rates(callers: number): Promise<[number, number]> {
  const end = performance.now() + seconds * 1000;
  const took: [number[], number[]] = [[], []];
  const call = async () => {
    while (performance.now() < end) {
      for (const [index, enqueue] of [plain, ours].entries()) {
        const began = performance.now();
        await enqueue();
        took[index as 0 | 1].push(performance.now() - began);
      }
    }
  };
  await Promise.all(Array.from({ length: callers }, call));
  const rate = (times: number[]) => {
    const kept = times.toSorted((a, b) => a - b).slice(0, Math.floor(times.length * 0.95));
    return (1000 * callers * kept.length) / kept.reduce((sum, time) => sum + time, 0);
  };
  return [rate(took[0]), rate(took[1])];
}

await client.request("PUT", "/v1/job-types/bench", { body: {} });
let worst = 1;
for (const callers of [1, 8]) {
  const [other, own] = await rates(callers);
  worst = Math.min(worst, own / other);
  console.log(
    `typescript  ${callers} callers: fetch ${other.toFixed(0)}/s, ` +
      `tidegate ${own.toFixed(0)}/s, ${((100 * own) / other).toFixed(0)} %`,
  );
}
const jobs = 2000;
await client.request("PUT", "/v1/job-types/bench-run", { body: {} });
await client.enqueueMany(Array.from({ length: jobs }, () => ({ type: "bench-run", data })));
let left = jobs;
const began = performance.now();
const worker = new Worker({ client });
await new Promise<void>((resolve) => {
  worker.handle("bench-run", { concurrency: 50 }, () => {
    left -= 1;
    if (left === 0) resolve();
  });
  worker.start();
});
await worker.stop();
console.log(
  `typescript  worker: ${(jobs / ((performance.now() - began) / 1000)).toFixed(0)} jobs/s`,
);
process.exitCode = worst < 0.8 ? 1 : 0;
