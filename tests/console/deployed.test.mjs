// The console of a deployment in a real browser. URL and TOKEN name the deployment.

import assert from 'node:assert/strict';
import { after, before, it } from 'node:test';
import { launch, newTab } from './browser.mjs';
import { call, until } from './servers.mjs';

const { CHROMIUM, URL: url, TOKEN: token } = process.env;
/** Names of this run alone: the deployment may have those of an earlier one. */
const OWN = `console-${Date.now().toString(36)}`;
const PLACES = [
  'overview',
  'jobs',
  `jobs/${OWN}/${OWN}`,
  `queues/${OWN}`,
  'errors',
  'types',
  `types/${OWN}`,
  'workers',
  'schedules',
  `schedules/${OWN}`,
  'triggers',
  `triggers/${OWN}`,
  'plugins',
  'audit',
  'settings',
];

let browser;

before(async () => {
  browser = await launch(CHROMIUM);
  const put = (path, body) => call(url, 'PUT', path, body, token);
  await put(`/v1/queues/${OWN}`, { concurrency: 2 });
  await put(`/v1/job-types/${OWN}`, { queue: OWN });
  await put(`/v1/schedules/${OWN}`, {
    type: OWN,
    cron: '0 3 * * *',
    tz: 'Europe/Berlin',
  });
  await put(`/v1/triggers/${OWN}`, {
    filter: { type: 'order.paid' },
    enqueue: { type: OWN },
  });
  await put(`/v1/jobs/${OWN}/${OWN}`, { data: { n: 1 }, delay_seconds: 3600 });
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
  await tab.page.getByText(OWN).first().waitFor();
  await tab.close();
});

it('signs in by the form, and cancels a job', async () => {
  const tab = await newTab(browser, { url });
  const { page } = tab;
  await tab.open(`#/jobs/${OWN}/${OWN}`);
  await page.getByLabel('Access token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('button', { name: 'Cancel …' }).click();
  await page.getByRole('button', { name: 'Cancel the job' }).click();
  await until('the cancel', async () => {
    const job = await call(url, 'GET', `/v1/jobs/${OWN}/${OWN}`, undefined, token);
    return job.state === 'cancelled';
  });
  await tab.close();
});
