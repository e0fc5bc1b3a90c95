// The memory of a page that is open for a real hour, with jobs that come and go meanwhile. Time in
// which the processes are stopped does not count.
//
//   node hour.mjs [MINUTES]

import { launch, newTab } from './browser.mjs';
import { many } from './fixtures.mjs';
import { call, serve } from './servers.mjs';

const { PROGRAM, DIST, CHROMIUM } = process.env;
const MINUTES = Number(process.argv[2] ?? 60);
const QUEUES = 50;
const HEAP_BYTES = 50 << 20;
/** Jobs that come and end in each second. */
const JOBS = 5;
const SAMPLE_MS = 300_000;
/** A step of the loop takes a second. One of more was interrupted. */
const MAX_STEP_MS = 5000;

const [browser, server] = await Promise.all([launch(CHROMIUM), serve(PROGRAM, DIST)]);
let failed = true;
try {
  await many(server.api, QUEUES);
  const tab = await newTab(browser, server, {});
  await tab.open('#/overview');
  await tab.page.getByRole('link', { name: 'queue-049' }).waitFor();
  const session = await tab.page.context().newCDPSession(tab.page);

  /** The bytes of the page's objects after a garbage collection. */
  const heap = async () => {
    await session.send('HeapProfiler.collectGarbage');
    return (await session.send('Runtime.getHeapUsage')).usedSize;
  };

  let reads = 0;
  tab.page.on('request', (request) => {
    if (request.url().includes('/v1/')) reads += 1;
  });
  let [last, sampled, second, open] = [await heap(), 0, 0, 0];
  console.log(`after 0 min: ${(last / 1e6).toFixed(1)} MB`);
  while (open < MINUTES * 60_000) {
    const began = Date.now();
    const type = `queue-${String(second % QUEUES).padStart(3, '0')}`;
    const jobs = Array.from({ length: JOBS }, (_, n) => ({ type, data: { second, n } }));
    await call(server.api, 'POST', '/v1/jobs/batch', { jobs });
    const { leases } = await call(server.api, 'POST', '/v1/leases', {
      types: [type],
      max: JOBS,
      worker: 'host-1-1',
    });
    const reports = leases.map(({ job, attempt }, n) => ({
      id: job.id,
      attempt,
      ...(n ? { status: 'succeeded' } : { status: 'failed', message: `mailbox ${second} is full` }),
    }));
    await call(server.api, 'POST', '/v1/leases', { max: 0, worker: 'host-1-1', reports });
    if (open >= sampled + SAMPLE_MS) {
      sampled += SAMPLE_MS;
      last = await heap();
      const minutes = Math.round(open / 60_000);
      console.log(`after ${minutes} min: ${(last / 1e6).toFixed(1)} MB, ${reads} reads of the page`);
    }
    second += 1;
    await new Promise((resolve) => setTimeout(resolve, 1000));
    open += Math.min(Date.now() - began, MAX_STEP_MS);
  }
  last = await heap();
  console.log(`at the end: ${(last / 1e6).toFixed(1)} MB, ${reads} reads of the page`);
  failed = last >= HEAP_BYTES;
  await tab.close();
} finally {
  await browser.close();
  await server.stop();
}
process.exitCode = failed ? 1 : 0;
