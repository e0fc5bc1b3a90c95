// The pictures of the book: an hour of work at a server whose clock this script moves.

import { statSync } from 'node:fs';
import { join } from 'node:path';
import { launch } from './browser.mjs';
import { call, serve, until } from './servers.mjs';

const { PROGRAM, DIST, CHROMIUM } = process.env;
const [folder] = process.argv.slice(2);
const BEGIN = '2030-01-15T08:00:00Z';
const STEP = 10;
const STEPS = 366;
const MOST_BYTES = 100_000;

/** Numbers from 0 to 1 that are the same in each run. */
function random(seed) {
  let state = seed;
  return () => {
    state = (state * 1_664_525 + 1_013_904_223) % 4_294_967_296;
    return state / 4_294_967_296;
  };
}

const next = random(7);
const TENANTS = ['acme', 'acme', 'acme', 'blue', 'blue', 'coda'];
const FAILURES = [
  {
    message: 'HTTP 550: mailbox 17 is full',
    error: {
      code: 550,
      stack:
        'Error: mailbox full\n    at deliver (src/mail.ts:112:9)\n    at async run (src/worker.ts:40:3)',
    },
  },
  {
    message: 'timeout after 30 s of smtp-2.example.com',
    error: {
      host: 'smtp-2.example.com',
      stack:
        'TimeoutError: no answer\n    at connect (src/smtp.ts:58:11)\n    at deliver (src/mail.ts:97:22)',
    },
  },
];

/** The queues: jobs that come in a step, workers, steps that a job takes, and how many fail. */
const QUEUES = [
  {
    name: 'mail',
    type: 'mail',
    settings: {
      concurrency: 8,
      constraints: [{ name: 'per-tenant', per: 'tenant', concurrency: 4 }],
    },
    come: (n) => 2 + (n > 200 && n < 260 ? 5 : 0) + next() * 2,
    workers: 2,
    takes: 2,
    fails: 0.04,
  },
  {
    name: 'reports',
    type: 'report',
    settings: { concurrency: 3 },
    come: () => next() * 1.2,
    workers: 1,
    takes: 5,
    fails: 0.02,
  },
  {
    name: 'exports',
    type: 'export',
    settings: { constraints: [{ name: 'pace', rate: { count: 5, per_seconds: 10 } }] },
    come: (n) => (n % 60 < 4 ? 20 : 0),
    workers: 1,
    takes: 1,
    fails: 0,
  },
  {
    name: 'payments',
    type: 'charge',
    settings: { concurrency: 4 },
    come: () => next() * 0.9,
    workers: 1,
    takes: 2,
    fails: 0.01,
    pause: 340,
  },
];

async function prepare(api) {
  for (const { name, type, settings } of QUEUES) {
    await call(api, 'PUT', `/v1/queues/${name}`, settings);
    const retry = {
      strategy: 'exponential',
      config: { base_seconds: 30, max_seconds: 120, jitter: 'none' },
    };
    await call(api, 'PUT', `/v1/job-types/${type}`, {
      queue: name,
      attributes: { tenant: '/tenant' },
      max_attempts: 3,
      lease_seconds: 3600,
      retry,
    });
  }
}

/** Lets a step of work happen at one queue: jobs come, end, and start. */
async function work(api, queue, n) {
  queue.running ??= [];
  const jobs = Array.from({ length: Math.floor(queue.come(n) + next()) }, () => {
    const tenant = TENANTS[Math.floor(next() * TENANTS.length)];
    const order = Math.floor(next() * 90_000) + 10_000;
    queue.jobs = (queue.jobs ?? 0) + 1;
    // Drawn ids would make each run another picture of another size.
    return { type: queue.type, id: `${queue.type}-${queue.jobs}`, data: { tenant, order } };
  });
  if (jobs.length) await call(api, 'POST', '/v1/jobs/batch', { jobs });
  const over = queue.running.filter((one) => one.until <= n);
  queue.running = queue.running.filter((one) => one.until > n);
  const reports = over.map(({ lease }) => {
    const fails = next() < queue.fails || lease.job.data.order % 37 === 0;
    const failure = FAILURES[Math.floor(next() * FAILURES.length)];
    const log = [
      { text: `order ${lease.job.data.order} loaded` },
      { text: fails ? failure.message : 'delivered', level: fails ? 'error' : 'info' },
    ];
    const base = {
      id: lease.job.id,
      type: lease.job.type,
      attempt: lease.attempt,
      token: lease.token,
      log,
    };
    return fails
      ? { ...base, status: 'failed', ...failure }
      : { ...base, status: 'succeeded', result: { ok: true } };
  });
  for (let worker = 0; worker < queue.workers; worker += 1) {
    const body = {
      worker: `${queue.name}-worker-${worker + 1}`,
      queue: queue.name,
      max: 4,
      reports: worker === 0 ? reports : [],
    };
    const { leases } = await call(api, 'POST', '/v1/leases', body);
    for (const lease of leases)
      queue.running.push({ lease, until: n + 1 + Math.floor(next() * 2 * queue.takes) });
  }
}

async function hour(api) {
  await call(api, 'POST', '/v1/dev/clock', { freeze: true });
  await call(api, 'POST', '/v1/dev/clock', { set: BEGIN });
  await prepare(api);
  for (let n = 0; n < STEPS; n += 1) {
    for (const queue of QUEUES) {
      if (queue.pause === n) await call(api, 'POST', `/v1/queues/${queue.name}/pause`);
      await work(api, queue, n);
    }
    await call(api, 'POST', '/v1/dev/clock', { advance_seconds: STEP });
  }
  return (await call(api, 'GET', '/v1/dev/clock')).now;
}

/** The pictures: name, place, and what is done before. */
const PICTURES = [
  { name: 'overview', place: 'overview', height: 460 },
  { name: 'queue', place: 'queues/mail', height: 620 },
  {
    name: 'job',
    place: async (api) => {
      const { jobs } = await call(
        api,
        'GET',
        '/v1/jobs?type=mail&phase=succeeded,failed&min_attempt=2&limit=1',
      );
      return `jobs/mail/${jobs[0].id}`;
    },
    dark: true,
    height: 560,
  },
  {
    name: 'jobs',
    place: 'jobs?phase=failed',
    height: 520,
    act: (page) =>
      page
        .getByRole('button', { name: 'Replay …' })
        .click()
        .then(() => page.getByText('will be replayed').waitFor()),
  },
  { name: 'what-if', place: 'queues/mail?part=what-if', height: 740, act: simulate },
  { name: 'phone', place: 'overview', phone: true, height: 760 },
];

async function simulate(page) {
  await page.getByRole('spinbutton', { name: 'Concurrency' }).first().fill('16');
  await page.getByRole('button', { name: 'Simulate' }).click();
  await page.locator('.outcome canvas').nth(2).waitFor();
  await page.locator('.outcome').scrollIntoViewIfNeeded();
  await page.evaluate(() => document.querySelector('.outcome').scrollIntoView({ block: 'end' }));
}

async function picture(
  browser,
  server,
  now,
  { name, place, dark, phone, height, width = 1180, act },
) {
  const context = await browser.newContext({
    viewport: { width: phone ? 390 : width, height },
    colorScheme: dark ? 'dark' : 'light',
    timezoneId: 'UTC',
    reducedMotion: 'reduce',
  });
  const page = await context.newPage();
  await page.clock.install({ time: new Date(now) });
  // The clock of this server is far from that of its machine, and it finds that.
  await page.route('**/v1/doctor', (route) =>
    route.fulfill({ json: { ok: true, version: '', checks: [] } }),
  );
  // The date in its answers is that of the machine, too.
  await page.route(/\/v1\/(?!doctor|stream)/, async (route) => {
    const response = await route.fetch();
    const headers = { ...response.headers(), date: new Date(now).toUTCString() };
    await route.fulfill({ response, headers });
  });
  await page.goto(`${server.url}/#/${typeof place === 'string' ? place : await place(server.api)}`);
  await page.locator('h1').waitFor();
  await page.waitForFunction(() => !document.querySelector('.loading'));
  await page.getByRole('button', { name: 'Live' }).waitFor();
  if (act) await act(page);
  const file = join(folder, `console-${name}.png`);
  await page.screenshot({ path: file });
  // A request under way is answered by no handler then.
  await page.unrouteAll({ behavior: 'ignoreErrors' });
  await context.close();
  const { size } = statSync(file);
  console.log(`${file}: ${size} bytes`);
  if (size > MOST_BYTES) throw new Error(`${file} has over ${MOST_BYTES} bytes`);
}

const server = await serve(PROGRAM, DIST, { args: ['dev'], folder: '--dir' });
const browser = await launch(CHROMIUM);
try {
  const now = await hour(server.api);
  await until(
    'the counts',
    async () => (await call(server.api, 'GET', '/v1/queues/mail')).status.phases.succeeded > 100,
  );
  for (const one of PICTURES) await picture(browser, server, now, one);
} finally {
  await browser.close();
  await server.stop();
}
