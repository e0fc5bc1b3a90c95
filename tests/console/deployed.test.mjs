// The console of a deployment in a real browser. URL and TOKEN name the deployment.

import assert from 'node:assert/strict';
import { after, before, it } from 'node:test';
import { launch, newTab } from './browser.mjs';
import { call, until } from './servers.mjs';

const { CHROMIUM, URL: url, TOKEN: token } = process.env;
const PLACES = [
  'overview',
  'jobs',
  'jobs/console-report/console-1',
  'queues/console-mail',
  'errors',
  'types',
  'types/console-report',
  'workers',
  'schedules',
  'schedules/console-nightly',
  'triggers',
  'triggers/console-orders',
  'plugins',
  'audit',
  'settings',
];

let browser;

before(async () => {
  browser = await launch(CHROMIUM);
  const put = (path, body) => call(url, 'PUT', path, body, token);
  await put('/v1/queues/console-mail', { concurrency: 2 });
  await put('/v1/job-types/console-report', { queue: 'console-mail' });
  await put('/v1/schedules/console-nightly', {
    type: 'console-report',
    cron: '0 3 * * *',
    tz: 'Europe/Berlin',
  });
  await put('/v1/triggers/console-orders', {
    filter: { type: 'order.paid' },
    enqueue: { type: 'console-report' },
  });
  await put('/v1/jobs/console-report/console-1', { data: { n: 1 }, delay_seconds: 3600 });
});

after(() => browser?.close());

it('opens every page without an error', async () => {
  const tab = await newTab(browser, { url }, { token });
  await tab.open('#/overview');
  for (const place of PLACES) {
    await tab.go(`#/${place}`);
    const alerts = await tab.page.locator('[role=alert]').allInnerTexts();
    assert.deepEqual(alerts, [], place);
  }
  await tab.go('#/overview');
  await tab.page.getByText('console-mail').first().waitFor();
  await tab.close();
});

it('signs in by the form, and cancels a job', async () => {
  const tab = await newTab(browser, { url });
  const { page } = tab;
  await tab.open('#/jobs/console-report/console-1');
  await page.getByLabel('Access token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Cancel …' }).click();
  await page.getByRole('button', { name: 'Cancel the job' }).click();
  await until('the cancel', async () => {
    const job = await call(url, 'GET', '/v1/jobs/console-report/console-1', undefined, token);
    return job.state === 'cancelled';
  });
  await tab.close();
});
