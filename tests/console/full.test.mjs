// What takes longer: 100,000 jobs, and the memory of a page that is open for long.

import assert from 'node:assert/strict';
import { after, before, describe, it } from 'node:test';
import { launch, newTab } from './browser.mjs';
import { many } from './fixtures.mjs';
import { call, serve, until } from './servers.mjs';

const { PROGRAM, DIST, CHROMIUM } = process.env;
const QUEUES = 200;
const JOBS = 100_000;
const HEAP_BYTES = 50 << 20;
/** Reads of the overview, so far apart that the server counts between some of them. */
const OVERVIEWS = 60;
const OVERVIEW_GAP_MS = 200;
/** As many reads as an hour has at the usual pace of polling, in a shorter time. */
const CHANGES = 3000;

let browser;
let server;

before(async () => {
  [browser, server] = await Promise.all([launch(CHROMIUM), serve(PROGRAM, DIST)]);
  await many(server.api, QUEUES);
  for (let sent = 2 * QUEUES; sent < JOBS; sent += 1000) {
    const jobs = Array.from({ length: 1000 }, (_, n) => ({
      type: `queue-${String(n % QUEUES).padStart(3, '0')}`,
      data: { n },
    }));
    await call(server.api, 'POST', '/v1/jobs/batch', { jobs });
  }
});

after(async () => {
  await browser?.close();
  await server?.stop();
});

/** The bytes of the page's objects after a garbage collection. */
async function heap(page) {
  const session = await page.context().newCDPSession(page);
  await session.send('HeapProfiler.collectGarbage');
  const { usedSize } = await session.send('Runtime.getHeapUsage');
  await session.detach();
  return usedSize;
}

describe('200 queues and 100,000 jobs', () => {
  it('have an overview that is answered at once', async () => {
    const took = [];
    for (let n = 0; n < OVERVIEWS; n += 1) {
      const began = performance.now();
      const { queues } = await call(server.api, 'GET', '/v1/overview?limit=1000');
      took.push(performance.now() - began);
      assert.ok(queues.length >= QUEUES);
      await new Promise((resolve) => setTimeout(resolve, OVERVIEW_GAP_MS));
    }
    const [first] = took;
    took.sort((a, b) => a - b);
    const [middle, most] = [took[OVERVIEWS / 2], took[OVERVIEWS - 1]];
    const text = [first, middle, most].map((ms) => `${Math.round(ms)} ms`);
    console.log(`the overview: the first ${text[0]}, median ${text[1]}, slowest ${text[2]}`);
    assert.ok(middle < 500, `${text[1]}, of a build that is not optimised`);
  });

  for (const place of [
    'overview',
    'jobs',
    'jobs?type=queue-007&phase=ready',
    'queues/queue-007',
    'types',
  ]) {
    it(`are shown: ${place}`, async () => {
      const tab = await newTab(browser, server, {});
      const began = performance.now();
      await tab.open(`#/${place}`);
      await tab.page.locator('main tbody tr, main .empty').first().waitFor();
      const took = performance.now() - began;
      assert.ok(took < 5000, `${Math.round(took)} ms`);
      await tab.close();
    });
  }

  it('have their errors counted page by page', async () => {
    const tab = await newTab(browser, server, {});
    await tab.page.goto(`${server.url}/#/errors`);
    await tab.page.getByText('No job that failed').waitFor({ timeout: 30_000 });
    await tab.close();
  });

  it('leave the page below 50 MB after thousands of updates', async () => {
    const tab = await newTab(browser, server, {});
    await tab.open('#/overview');
    await tab.page.getByRole('link', { name: 'queue-199' }).waitFor();
    const first = await heap(tab.page);
    for (let sent = 0; sent < CHANGES; sent += 100) {
      const jobs = Array.from({ length: 100 }, (_, n) => ({
        type: `queue-${String((sent + n) % QUEUES).padStart(3, '0')}`,
        data: sent,
      }));
      await call(server.api, 'POST', '/v1/jobs/batch', { jobs });
      // The page reads after each of these; a second apart, as changes are gathered.
      await new Promise((resolve) => setTimeout(resolve, 1000));
    }
    for (const place of ['#/jobs', '#/overview', '#/queues/queue-001', '#/overview', '#/overview'])
      await tab.go(place);
    const last = await until('a heap below 50 MB', async () => {
      const bytes = await heap(tab.page);
      return bytes < HEAP_BYTES && bytes;
    });
    console.log(
      `the heap had ${(first / 1e6).toFixed(1)} MB at first, ${(last / 1e6).toFixed(1)} MB at the end`,
    );
    await tab.close();
  });
});
