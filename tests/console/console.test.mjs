// The console in a real browser, with real servers.

import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, before, describe, it } from 'node:test';
import { launch, newTab } from './browser.mjs';
import { HOSTILE, hostile, many, paced, plugin, recorded, sample } from './fixtures.mjs';
import { call, serve, startProxy, until } from './servers.mjs';

const { PROGRAM, DIST, CHROMIUM, REPOSITORY } = process.env;
const LISTS = [
  'overview',
  'jobs',
  'errors',
  'types',
  'workers',
  'schedules',
  'triggers',
  'plugins',
  'audit',
  'settings',
];

/** A queue of the overview whose values need much room. */
const LARGE = {
  name: 'billing-invoices-of-the-region',
  phases: {
    scheduled: 1_234_567,
    ready: 1_234_567,
    retrying: 123_456,
    running: 12_345,
    failed: 123_456,
    succeeded: 1_234_567,
  },
  depth_at_least: true,
  concurrency: 12_345,
  running_weight: 12_345,
  oldest_due_at: '2026-01-01T00:00:00Z',
  held: [
    {
      kind: 'constraint',
      name: 'per-tenant-and-region',
      value: 'a-tenant-with-a-long-name',
      jobs: 1_234_567,
      reason: 'its limit is in use',
    },
    { kind: 'worker', jobs: 12_345, reason: 'no worker asks' },
  ],
  start_delay_seconds: { p50: 4000, p95: 5000, p99: 86_000 },
  throughput: {
    over_seconds: 300,
    enqueued_per_second: 12_345.6,
    finished_per_second: 12_345.6,
    failed_per_second: 12.3,
  },
  time_to_empty_seconds: 50_000,
  workers: 1234,
  desired_workers: 12_345,
};

/** The rules of axe about colours. */
const COLOURS = ['color-contrast', 'link-in-text-block'];
/** The rules of axe that can differ where the same elements lie elsewhere. */
const LAYOUT = [...COLOURS, 'scrollable-region-focusable', 'target-size'];

let browser;
let full;
let ids;

/** Opens a tab, runs the test in it, and fails it if anything went wrong on the page. */
async function on(server, options, work) {
  const tab = await newTab(browser, server, options);
  try {
    await work(tab, tab.page);
  } catch (error) {
    await tab.page.screenshot({ path: join(import.meta.dirname, 'failure.png') }).catch(() => null);
    await tab.close().catch((also) => {
      error.message += `\n${also.message}`;
    });
    throw error;
  }
  await tab.close();
}

// Suites wait for browsers and servers more than they compute, so some run at once. Each changes other jobs.
describe('the console', { concurrency: 3 }, () => {
  before(async () => {
    [browser, full] = await Promise.all([launch(CHROMIUM), serve(PROGRAM, DIST)]);
    if (full.proxied)
      console.log('NOTE: the program has another build of the console; a proxy serves this one');
    ids = await sample(full.api);
    const wasm = ['rate-limit', 'region-share'].map((name) =>
      join(REPOSITORY, 'plugins/dist', `${name}.wasm`),
    );
    await plugin(full.api, wasm);
  });

  after(async () => {
    await browser?.close();
    await full?.stop();
  });

  describe('every page', { concurrency: 2 }, () => {
    const items = () => [
      `jobs/report/${ids.failed}`,
      `jobs/mail/${ids.running}`,
      `jobs/mail/${ids.retried}`,
      'queues/mail',
      'types/mail',
      'schedules/nightly',
      'triggers/orders',
      'plugins/shape',
    ];
    /** What is wrong on a page by axe, and what is wider than the window or its own frame. */
    const wrongOf = async (tab, page, place, rules) => {
      const found = await tab.axe(rules);
      const wide = await page.evaluate(() =>
        [document.documentElement, ...document.querySelectorAll('.table')]
          .filter((node) => node.scrollWidth > node.clientWidth)
          .map((node) => `${node.scrollWidth - node.clientWidth} px of ${node.ariaLabel} hidden`),
      );
      return [...found, ...wide].map((one) => `${place}: ${one}`);
    };

    it('is clean by axe in a small window, light and dark', async () => {
      await on(full, { width: 1024 }, async (tab, page) => {
        const found = [];
        await tab.open('#/overview');
        for (const place of [...LISTS, ...items()]) {
          await tab.go(`#/${place}`);
          found.push(...(await wrongOf(tab, page, place)));
          await page.emulateMedia({ colorScheme: 'dark' });
          found.push(...(await wrongOf(tab, page, `${place}, dark`, COLOURS)));
          await page.emulateMedia({ colorScheme: 'light' });
          assert.notEqual(await page.title(), 'tidegate', `${place} has a title of its own`);
        }
        assert.deepEqual(found, []);
      });
    });

    it('is clean by axe on a phone, with touch targets of 40 px', async () => {
      await on(full, { phone: true }, async (tab, page) => {
        const found = [];
        await tab.open('#/overview');
        for (const place of [...LISTS, ...items()]) {
          await tab.go(`#/${place}`);
          found.push(...(await wrongOf(tab, page, place, LAYOUT)));
          const small = await page.evaluate(() =>
            [
              ...document.querySelectorAll(
                'button, select, input:not([type=checkbox]), nav a, td .id',
              ),
            ]
              .map((node) => [node, node.getBoundingClientRect().height])
              .filter(([node, height]) => height < 39.5 && node.checkVisibility())
              .map(([node, height]) => `${node.tagName} ${node.textContent} ${height}`),
          );
          found.push(...small.map((one) => `${place}: ${one}`));
        }
        assert.deepEqual(found, []);
      });
    });

    it('has dialogs that are clean by axe, and give the focus back', async () => {
      const dialogs = [
        ['queues/mail', 'Edit settings …'],
        ['jobs', 'Enqueue'],
        ['jobs?phase=failed', 'Replay …'],
        ['schedules', 'New schedule …'],
        ['triggers', 'New trigger …'],
        ['settings', 'New token …'],
        [`jobs/report/${ids.failed}`, 'Replay …'],
      ];
      await on(full, {}, async (tab, page) => {
        const found = [];
        await tab.open('#/overview');
        for (const [place, button] of dialogs) {
          await tab.go(`#/${place}`);
          const opener = page.getByRole('button', { name: button, exact: true }).first();
          await opener.click();
          await page.getByRole('dialog').waitFor();
          found.push(...(await wrongOf(tab, page, `${place} ${button}`)));
          await page.emulateMedia({ colorScheme: 'dark' });
          await page.setViewportSize({ width: 390, height: 844 });
          found.push(...(await wrongOf(tab, page, `${place} ${button}, phone`, LAYOUT)));
          await page.setViewportSize({ width: 1366, height: 850 });
          await page.emulateMedia({ colorScheme: 'light' });
          await page.keyboard.press('Escape');
          await page.getByRole('dialog').waitFor({ state: 'detached' });
          const focused = () => page.evaluate(() => document.activeElement.textContent.trim());
          await until(`the focus returns to ${button}`, async () => (await focused()) === button);
        }
        assert.deepEqual(found, []);
      });
    });

    it('shows an empty server as empty, without an error', async () => {
      const server = await serve(PROGRAM, DIST);
      try {
        await on(server, {}, async (tab, page) => {
          await tab.open('#/overview');
          await page.getByText('No job has come yet').waitFor();
          for (const place of LISTS) {
            await tab.go(`#/${place}`);
            assert.equal(await page.locator('.failure').count(), 0, place);
          }
          for (const place of [
            '#/nonsense',
            '#/jobs/email/%E0%A4%A',
            '#/jobs/a/b/c',
            '#/queues/a/b',
          ]) {
            await tab.go(place);
            await page.getByRole('heading', { name: 'Not found' }).waitFor();
          }
          for (const place of [
            '#/jobs/mail/none',
            '#/queues/none',
            '#/types/none',
            '#/schedules/none',
            '#/triggers/none',
            '#/plugins/none',
          ]) {
            await tab.go(place);
            await page.getByText('Not found:').waitFor();
            assert.equal(await page.getByText('No answer').count(), 0);
          }
        });
      } finally {
        await server.stop();
      }
    });
  });

  describe('the overview', { concurrency: 1 }, () => {
    for (const width of [1024, 1440]) {
      it(`fits a window of ${width} pixels, however large its values`, async () => {
        await on(full, { width }, async (tab, page) => {
          await page.route('**/v1/overview*', async (route) => {
            const answer = await route.fetch();
            const { queues } = await answer.json();
            // A server that has just started has no minute yet.
            const minutes = [{ at: new Date().toISOString(), finished: 9, failed: 1, ready: 9 }];
            const rows = queues.map((row) => ({
              ...row,
              ...LARGE,
              minutes,
              name: `${LARGE.name}-${row.name}`,
            }));
            await route.fulfill({ json: { queues: rows } });
          });
          await tab.open('#/overview');
          await page.getByRole('link', { name: /billing-invoices.*mail/ }).waitFor();
          const hidden = await page
            .getByRole('group', { name: 'Queues' })
            .evaluate((table) => table.scrollWidth - table.clientWidth);
          assert.ok(hidden <= 0, `${hidden} px of the table are hidden`);
          const spark = await page.locator('.spark').first().boundingBox();
          assert.ok(spark.width > 50 && spark.x + spark.width <= width, 'the hour is visible');
          await page.getByTitle('1\u202f234\u202f567+').first().waitFor();
        });
      });
    }
  });

  describe('a queue that the server has not explained yet', { concurrency: 1 }, () => {
    it('has unknown holders and an unknown number of workers', async () => {
      await on(full, {}, async (tab, page) => {
        const of = (name, more) => ({ ...LARGE, name, held: [], desired_workers: 0, ...more });
        const queues = [
          of('explained', { explained_at: new Date().toISOString() }),
          of('unexplained', {}),
          of('idle', { phases: { succeeded: 3 } }),
        ];
        await page.route('**/v1/overview*', (route) => route.fulfill({ json: { queues } }));
        await tab.open('#/overview');
        const unknown = (name) =>
          page.getByRole('row', { name: new RegExp(`^${name} `) }).getByText('unknown');
        await page.getByRole('link', { name: 'idle' }).waitFor();
        const found = [];
        for (const { name } of queues) found.push(await unknown(name).count());
        assert.deepEqual(found, [0, 2, 0]);
      });
    });
  });

  describe('three in the morning, at most three clicks', { concurrency: 1 }, () => {
    it('why is nothing running', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('');
        await page
          .getByRole('link', { name: /constraint per-tenant|^concurrency/ })
          .first()
          .click();
        await page.getByRole('heading', { name: 'Why is it idle or slow?' }).waitFor();
        assert.match(
          await page.locator('.answer').innerText(),
          /due jobs wait: 2 of 2 of the queue is in use/,
        );
      });
    });

    it('failed since yesterday with this error: retry all', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/errors');
        await page
          .getByRole('row', { name: /mailbox/ })
          .filter({ hasText: 'report' })
          .getByRole('button', { name: /Retry all/ })
          .click();
        await page.getByRole('button', { name: 'Replay: 4 jobs' }).click();
        await page.getByText('done: 4 of 4 jobs').waitFor();
        const { jobs } = await call(full.api, 'GET', '/v1/jobs?type=report&phase=ready');
        assert.equal(jobs.filter((job) => job.replay_of).length, 4);
      });
    });

    it('how far behind are we', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('');
        const row = page.getByRole('row', { name: /mail/ }).first();
        await row.waitFor();
        const heads = await page.getByRole('columnheader').allInnerTexts();
        for (const name of ['Ready', 'Start delay', 'In · out', 'Empty in', 'Due for']) {
          assert.ok(
            heads.some((head) => head.includes(name)),
            name,
          );
        }
        await page.getByRole('list', { name: 'All queues' }).getByText('longest due').waitFor();
      });
    });
  });

  describe('updates', { concurrency: 1 }, () => {
    it('come by the stream, and keep focus, selection and scroll', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/jobs?type=mail');
        await page.getByText('Live').waitFor();
        const link = page.getByRole('link', { name: 'mail-3', exact: true });
        await link.focus();
        await page.evaluate(() => scrollTo(0, 200));
        const handle = await link.elementHandle();
        const top = await page.evaluate(() => scrollY);
        await call(full.api, 'POST', '/v1/jobs', { type: 'mail', id: 'mail-new', data: {} });
        await page.getByRole('link', { name: 'mail-new', exact: true }).waitFor();
        assert.ok(
          await handle.evaluate((node) => document.activeElement === node && node.isConnected),
          'the focus stays',
        );
        assert.ok(
          Math.abs((await page.evaluate(() => scrollY)) - top) < 60,
          'the scroll position stays',
        );
      });
    });

    it('keep a text selection, and wait while there is one', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open(`#/jobs/report/${ids.failed}`);
        await page.evaluate(() =>
          getSelection().selectAllChildren(document.querySelector('.error-box')),
        );
        const selected = await page.evaluate(() => String(getSelection()));
        assert.match(selected, /mailbox/);
        await page.getByText('Waits: text selected').waitFor();
        await page.waitForTimeout(2500);
        assert.equal(await page.evaluate(() => String(getSelection())), selected);
      });
    });

    it('can be paused', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/jobs?type=mail');
        await page.getByRole('button', { name: /pause updates/ }).click();
        await call(full.api, 'POST', '/v1/jobs', { type: 'mail', id: 'mail-paused', data: {} });
        await page.waitForTimeout(2500);
        assert.equal(await page.getByText('mail-paused').count(), 0);
        await page.getByRole('button', { name: /resume updates/ }).click();
        await page.getByRole('link', { name: 'mail-paused', exact: true }).waitFor();
      });
    });

    it('stop while the page is hidden, and go on when it is seen', async () => {
      await on(full, {}, async (tab, page) => {
        let requests = 0;
        page.on('request', (request) => {
          if (request.url().includes('/v1/')) requests += 1;
        });
        const show = (hidden) =>
          page.evaluate((value) => {
            Object.defineProperty(document, 'hidden', { configurable: true, value });
            document.dispatchEvent(new Event('visibilitychange'));
          }, hidden);
        await tab.open('#/jobs?type=mail');
        await page.getByRole('button', { name: 'Live' }).waitFor();
        await show(true);
        await page.getByRole('button', { name: 'Polling' }).waitFor();
        const before = requests;
        await call(full.api, 'POST', '/v1/jobs', { type: 'mail', id: 'mail-hidden', data: {} });
        await page.waitForTimeout(2500);
        assert.equal(requests, before);
        await show(false);
        await page.getByRole('link', { name: 'mail-hidden', exact: true }).waitFor();
      });
    });

    it('show the time of the server where the clock of the browser is wrong', async () => {
      await on(full, {}, async (tab, page) => {
        await page.clock.install({ time: new Date(Date.now() + 5 * 3_600_000) });
        await tab.open('#/jobs?type=mail');
        const due = page
          .getByRole('row', { name: /mail-1 / })
          .locator('time')
          .first();
        await until('minutes at most', async () =>
          /(now|\d+ (s|min) ago|in \d+ (s|min))$/.test(await due.innerText()),
        );
      });
    });

    it('say that the server died, and go on when it returns', async () => {
      const server = await serve(PROGRAM, DIST);
      try {
        await sample(server.api);
        await on(server, {}, async (tab, page) => {
          await tab.open('#/jobs');
          await page.getByRole('link', { name: 'report-1', exact: true }).waitFor();
          await server.kill();
          await page.getByText('No answer.').waitFor();
          await page.getByRole('link', { name: 'report-1', exact: true }).waitFor();
          await server.again();
          await page.getByText('No answer.').waitFor({ state: 'detached' });
        });
      } finally {
        await server.stop();
      }
    });
  });

  describe('jobs', { concurrency: 1 }, () => {
    it('are filtered by the form, in the address, back and forward', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/jobs');
        await page.getByRole('combobox', { name: 'Type', exact: true }).fill('report');
        await page.getByLabel('Error contains').fill('MAILBOX');
        await page.getByRole('button', { name: 'Apply' }).click();
        await page.waitForURL(/type=report/);
        await until('only matches', async () => (await page.locator('tbody tr').count()) === 4);
        await page
          .getByRole('navigation', { name: 'Phases' })
          .getByRole('link', { name: /succeeded/ })
          .click();
        await page.getByText('No job matches.').waitFor();
        await page.goBack();
        await until(
          'the matches again',
          async () => (await page.locator('tbody tr').count()) === 4,
        );
        await page.getByRole('link', { name: 'Remove the condition Type: report' }).click();
        await page.waitForURL((url) => !url.hash.includes('type='));
        await page.getByText('Views').click();
        await page.getByLabel('Save this filter as').fill('full boxes');
        await page.getByRole('button', { name: 'Save' }).click();
        await page.getByRole('button', { name: 'Clear' }).click();
        await page.waitForURL(/#\/jobs$/);
        await page.getByText('Views').click();
        await page.getByRole('button', { name: 'full boxes', exact: true }).click();
        await page.waitForURL(/error_contains=MAILBOX/);
      });
    });

    it('are sorted over all pages by the headings', async () => {
      const jobs = Array.from({ length: 25 }, (_, n) => ({
        ...{ type: 'mail', id: `sort-${n}`, data: {}, priority: (n * 7) % 25 },
        ...{ attributes: { batch: 'sorted' }, delay_seconds: 3600 },
      }));
      await call(full.api, 'POST', '/v1/jobs/batch', { jobs });
      await on(full, {}, async (tab, page) => {
        await tab.open('#/jobs?attribute[batch]=sorted');
        await page.getByLabel('a page').selectOption('20');
        await page.getByText('Columns', { exact: true }).click();
        await page.getByRole('checkbox', { name: 'Priority' }).setChecked(true);
        await page.keyboard.press('Escape');
        const first = async () => (await page.locator('tbody tr').first().innerText()) ?? '';
        const heading = page.getByRole('columnheader', { name: /Priority/ });
        await heading.getByRole('button').click();
        await page.waitForURL(/sort=-priority/);
        // Of all 25, not of the 20 newest.
        const largest = jobs.find((job) => job.priority === 24).id;
        await until('the largest is first', async () => (await first()).includes(largest));
        assert.equal(await heading.getAttribute('aria-sort'), 'descending');
        await page.getByText('20 shown, all that match are sorted.').waitFor();
        await page.getByRole('link', { name: 'Next page' }).click();
        const fifth = jobs.find((job) => job.priority === 4).id;
        await until('the second page goes on', async () => (await first()).includes(fifth));
        await heading.getByRole('button').click();
        await page.waitForURL((url) => /sort=priority/.test(url) && !/cursor/.test(url));
        await until('the smallest is first', async () => (await first()).includes('sort-0'));
        assert.deepEqual(await tab.axe(), []);
        // A heading without an order of the server sorts what is shown.
        await page.getByRole('columnheader', { name: 'Job' }).getByRole('button').click();
        await until('the last id is first', async () => /sort-24|sort-9/.test(await first()));
        assert.match(page.url(), /sort=priority/);
        await page.getByRole('columnheader', { name: 'Job' }).getByRole('button').click();
        await page.getByRole('columnheader', { name: 'Job' }).getByRole('button').click();
        await heading.getByRole('button').click();
        await page.waitForURL((url) => !/sort=/.test(url));
      });
    });

    it('of a selection are changed after a dry run', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/jobs?type=mail&phase=ready');
        await page.getByLabel('Select mail-6').check();
        await page.getByLabel('Select mail-7').check();
        await page.getByRole('button', { name: 'Cancel …' }).click();
        await page.getByRole('button', { name: 'Cancel: 2 jobs' }).click();
        await page.getByText('done: 2 of 2 jobs').waitFor();
        assert.equal((await call(full.api, 'GET', '/v1/jobs/mail/mail-6')).state, 'cancelled');
      });
    });

    it('are enqueued, edited, run and cancelled by hand', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/jobs');
        await page.getByRole('button', { name: 'Enqueue' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Type', { exact: true }).fill('mail');
        await dialog.getByLabel('Data (JSON)').fill('{"n": 12345678901234567890');
        assert.ok(await dialog.getByRole('button', { name: 'Enqueue' }).isDisabled());
        await dialog.getByLabel('Data (JSON)').fill('{"n": 12345678901234567890}');
        await dialog.getByLabel('Id', { exact: true }).fill('by-hand');
        await dialog.getByLabel('Due', { exact: true }).fill('+1h');
        await dialog.getByRole('button', { name: 'Enqueue' }).click();
        await page.getByRole('heading', { name: 'by-hand' }).waitFor();
        await page.getByText('12345678901234567890').waitFor();
        await page.getByRole('button', { name: 'Edit …' }).click();
        await page.getByRole('dialog').getByLabel('Priority').fill('7');
        await page.getByRole('button', { name: 'Change the job' }).click();
        await until(
          'the priority',
          async () => (await call(full.api, 'GET', '/v1/jobs/mail/by-hand')).priority === 7,
        );
        await page.getByRole('button', { name: 'Run now' }).click();
        await page.getByText('The job is due now.').waitFor();
        await page.getByRole('button', { name: 'Cancel …' }).click();
        await page.getByRole('button', { name: 'Cancel the job' }).click();
        await until(
          'the cancel',
          async () => (await call(full.api, 'GET', '/v1/jobs/mail/by-hand')).state === 'cancelled',
        );
        await until('no replay before', () =>
          page.getByRole('button', { name: 'Replay …' }).isEnabled(),
        );
        await page.getByRole('button', { name: 'Replay …' }).click();
        await page.getByLabel('Edit before the retry').check();
        await page.getByRole('dialog').getByLabel('Data (JSON)').fill('{"n": 2.50}');
        await page.getByRole('button', { name: 'Replay as a new job' }).click();
        await page.getByText('replay of', { exact: true }).waitFor();
        await page.getByText('2.50').waitFor();
      });
    });

    it('show their timeline, stack traces, log and progress', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open(`#/jobs/report/${ids.failed}`);
        await page.getByText('Attempt 1 failed').waitFor();
        await page.getByText('at deliver (mail.js:12:9)').waitFor();
        await page.getByText('connecting').waitFor();
        await tab.go(`#/jobs/mail/${ids.running}`);
        await page.getByText('40 %').first().waitFor();
        await page.getByText('half of it').first().waitFor();
        await page.getByText('sending').waitFor();
      });
    });
  });

  describe('settings', { concurrency: 1 }, () => {
    it('of a queue are previewed, refused by field, and applied', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/queues/reports');
        await page.getByRole('button', { name: 'Edit settings …' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Starts', { exact: true }).fill('0');
        await dialog.getByLabel('Concurrency').first().fill('9');
        await dialog.getByRole('button', { name: 'Preview the changes' }).click();
        const refused = dialog.locator('small.wrong');
        await refused.waitFor();
        await dialog.getByLabel('Starts', { exact: true }).fill('50');
        await dialog.getByRole('button', { name: 'Preview the changes' }).click();
        await dialog.getByRole('row', { name: /constraints.pace.rate.count/ }).waitFor();
        await dialog.getByRole('button', { name: 'Apply' }).click();
        await page.getByText('The settings are changed.').waitFor();
        assert.equal((await call(full.api, 'GET', '/v1/queues/reports')).concurrency, 9);
      });
    });

    it('of a queue are not overwritten when another change came first', async () => {
      await call(full.api, 'PUT', '/v1/queues/shared', { concurrency: 3 });
      await on(full, {}, async (tab, page) => {
        await tab.open('#/queues/shared');
        await page.getByRole('button', { name: 'Edit settings …' }).click();
        const dialog = page.getByRole('dialog');
        await call(full.api, 'PATCH', '/v1/queues/shared', { concurrency: 4 });
        await page.getByText('of 4', { exact: false }).first().waitFor();
        await dialog.getByRole('spinbutton', { name: 'Concurrency' }).first().fill('5');
        await dialog.getByRole('button', { name: 'Preview the changes' }).click();
        await dialog.getByText('it has changed since').waitFor();
        assert.equal((await call(full.api, 'GET', '/v1/queues/shared')).concurrency, 4);
      });
    });

    it('of a queue: pause, resume, and purge with a count', async () => {
      await on(full, {}, async (tab, page) => {
        await call(full.api, 'PUT', '/v1/queues/idle', {});
        await call(full.api, 'PUT', '/v1/job-types/idle', { queue: 'idle' });
        for (const n of [1, 2, 3])
          await call(full.api, 'POST', '/v1/jobs', { type: 'idle', data: n });
        await tab.open('#/queues/idle');
        await page.getByRole('button', { name: 'Pause …' }).click();
        await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
        await page.getByRole('button', { name: 'Resume' }).waitFor();
        await page
          .getByText(/paused/)
          .first()
          .waitFor();
        await page.getByRole('button', { name: 'Resume' }).click();
        await page.getByRole('button', { name: 'Purge …' }).click();
        await page.getByRole('button', { name: 'Drop 3 jobs' }).click();
        await page.getByText('done: 3 of 3 jobs').waitFor();
      });
    });

    it('of a schedule: both zones, run now, create', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/schedules/nightly');
        await page.getByText('01:00 UTC').or(page.getByText('02:00 UTC')).first().waitFor();
        await page.getByText('+01:00').or(page.getByText('+02:00')).first().waitFor();
        await page.getByRole('button', { name: 'Run now …' }).click();
        await page.getByRole('dialog').getByRole('button', { name: 'Run now' }).click();
        await page.getByText('A job of nightly is enqueued.').waitFor();
        await tab.go('#/schedules');
        await page.getByRole('button', { name: 'New schedule …' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Name').fill('hourly');
        await dialog.getByLabel('Job type').fill('report');
        await dialog.getByLabel('Cron pattern').fill('not a pattern');
        await dialog.getByRole('button', { name: 'Create the schedule' }).click();
        await dialog.locator('small.wrong').waitFor();
        await dialog.getByLabel('Cron pattern').fill('5 * * * *');
        await dialog.getByRole('button', { name: 'Show the next ten' }).click();
        await until(
          'ten instants',
          async () => (await dialog.locator('.instants tbody tr').count()) === 10,
        );
        await dialog.getByRole('button', { name: 'Create the schedule' }).click();
        await page.getByRole('heading', { name: 'hourly' }).waitFor();
      });
    });

    it('show dead letters and plugin versions, and change them', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/triggers');
        await page.getByRole('table').getByRole('link', { name: 'broken' }).first().waitFor();
        await page.getByRole('button', { name: 'Replay', exact: true }).click();
        await page.getByText('The trigger answered: dead lettered.').waitFor();
        await tab.go('#/triggers/orders');
        await page.getByText('order.paid e1').waitFor();
        await page.getByRole('button', { name: 'Test, without doing it' }).click();
        await page.getByText('The trigger does not match.').waitFor();
        const event = {
          specversion: '1.0',
          id: 'e2',
          source: '/shop',
          type: 'order.paid',
          data: { id: 8 },
        };
        await page.getByLabel('CloudEvent (JSON)').fill(JSON.stringify(event));
        await page.getByRole('button', { name: 'Test, without doing it' }).click();
        await page.getByText('It would enqueue this job.').waitFor();
        await tab.go('#/plugins/shape');
        await page.getByRole('button', { name: 'Promote the shadow …' }).click();
        await page.getByRole('dialog').getByRole('button', { name: 'Promote' }).click();
        await until(
          'version 2 is live',
          async () => (await call(full.api, 'GET', '/v1/plugins/shape')).live === 2,
        );
        await page.getByRole('button', { name: 'Roll back to it …' }).waitFor();
      });
    });

    it('show who changed what', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/audit');
        await page
          .getByRole('row', { name: /put trigger|set trigger|trigger/ })
          .first()
          .waitFor();
      });
    });
  });

  describe('keys', { concurrency: 1 }, () => {
    it('search, move and help', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open('#/overview');
        await page.keyboard.press('/');
        await page.keyboard.type('report-1');
        await page.getByRole('option', { name: 'job report-1' }).waitFor();
        await page.keyboard.press('Enter');
        await page.getByRole('heading', { name: 'report-1' }).waitFor();
        await page.keyboard.press('g');
        await page.keyboard.press('w');
        await page.getByRole('heading', { name: 'Workers' }).waitFor();
        await page.keyboard.press('g');
        await page.keyboard.press('j');
        await page.getByRole('heading', { name: 'Jobs' }).waitFor();
        await page.locator('tbody tr').nth(1).waitFor();
        await page.keyboard.press('j');
        await page.keyboard.press('j');
        const second = await page.locator('tbody tr').nth(1).getAttribute('data-row');
        assert.equal(
          await page.evaluate(() => document.activeElement.closest('[data-row]')?.dataset.row),
          second,
        );
        await page.keyboard.press('?');
        await page.getByRole('dialog', { name: 'Keys' }).waitFor();
        await page.keyboard.press('Escape');
        await page.getByRole('dialog').waitFor({ state: 'detached' });
      });
    });

    it('skip to the content, and toggle the zone', async () => {
      await on(full, {}, async (tab, page) => {
        await tab.open(`#/jobs/report/${ids.failed}`);
        await page.keyboard.press('Tab');
        assert.match(
          await page.evaluate(() => document.activeElement.textContent),
          /Skip to the content/,
        );
        await page.keyboard.press('Enter');
        assert.equal(await page.evaluate(() => document.activeElement.id), 'main');
        const local = await page.locator('time').first().innerText();
        await page.keyboard.press('z');
        await until(
          'another time',
          async () => (await page.locator('time').first().innerText()) !== local,
        );
        await page.getByRole('button', { name: 'Times: UTC' }).waitFor();
      });
    });
  });

  describe('hostile texts', { concurrency: 1 }, () => {
    it('are shown as they are, on every page that has them', async () => {
      const server = await serve(PROGRAM, DIST);
      try {
        const id = await hostile(server.api);
        for (const phone of [false, true]) {
          await on(server, { phone }, async (tab, page) => {
            await tab.open('#/jobs');
            for (const place of [
              'jobs?phase=failed',
              `jobs/odd/${id}`,
              'errors',
              'workers',
              'queues/odd',
              'overview',
              'audit',
            ]) {
              await tab.go(`#/${place}`);
              const wide = await page.evaluate(
                () => document.documentElement.scrollWidth - innerWidth,
              );
              assert.ok(wide <= 0, `${place} is ${wide} px too wide`);
              assert.equal(
                await page.evaluate(
                  () =>
                    document.querySelectorAll('main script, main img, main i, main b[onerror]')
                      .length,
                ),
                0,
                place,
              );
              assert.doesNotMatch(await page.title(), /pwned/);
            }
            await tab.go(`#/jobs/odd/${id}`);
            assert.ok(
              (await page.locator('main').innerText()).includes(
                HOSTILE[Number(id.split('-')[1])].slice(0, 20),
              ),
            );
          });
        }
      } finally {
        await server.stop();
      }
    });
  });

  describe('tokens', { concurrency: 1 }, () => {
    let server;
    let secrets;
    before(async () => {
      server = await serve(PROGRAM, DIST);
      await sample(server.api);
      const make = (name, scopes, more, token) =>
        call(server.api, 'POST', '/v1/tokens', { name, scopes, ...more }, token).then(
          (made) => made.token,
        );
      const admin = await make('ops', ['admin'], {});
      secrets = {
        admin,
        reader: await make('reader', ['read'], {}, admin),
        bounded: await make('one queue', ['read'], { queues: ['mail'] }, admin),
      };
    });
    after(() => server?.stop());

    it('are needed, refused, and shared with another tab', async () => {
      await on(server, {}, async (tab, page) => {
        await tab.open('#/jobs');
        await page.getByRole('button', { name: 'Sign in' }).waitFor();
        assert.deepEqual(await tab.axe(), []);
        await page.getByLabel('Access token').fill('wrong');
        await page.keyboard.press('Enter');
        await page.getByText('does not accept this token').waitFor();
        await page.getByLabel('Access token').fill(secrets.admin);
        await page.getByRole('button', { name: 'Sign in' }).click();
        await page.getByRole('heading', { name: 'Jobs' }).waitFor();
        const other = await page.context().newPage();
        await other.goto(`${server.url}/#/workers`);
        await other.getByRole('heading', { name: 'Workers' }).waitFor();
        await other.getByRole('button', { name: 'Sign out' }).click();
        await other.getByRole('button', { name: 'Sign in' }).waitFor();
        await page.getByRole('button', { name: 'Sign in' }).waitFor();
      });
    });

    it('that only read see no control that changes anything', async () => {
      await on(server, { token: secrets.reader }, async (tab, page) => {
        await tab.open('#/overview');
        await page.getByText('reader').or(page.getByText('Signed in')).first().waitFor();
        for (const place of [
          'jobs',
          `jobs/report/report-1`,
          'queues/mail',
          'types/mail',
          'schedules',
          'schedules/nightly',
          'workers',
          'triggers',
          'errors',
        ]) {
          await tab.go(`#/${place}`);
          const buttons = await page.locator('main').getByRole('button').allInnerTexts();
          const changing = buttons.filter((text) =>
            /^(Replay|Cancel|Pause|Resume|Purge|Drain …|Stop …|Run now|Edit|Enqueue$|Enqueue …|New|Delete|Promote|Retry|Set|Resched)/.test(
              text,
            ),
          );
          assert.deepEqual(changing, [], place);
          assert.equal(await page.locator('.failure').count(), 0, place);
        }
        assert.equal(await page.getByRole('link', { name: 'Audit' }).count(), 0);
      });
    });

    it('with bounds see what is within them', async () => {
      await on(server, { token: secrets.bounded }, async (tab, page) => {
        await tab.open('#/overview');
        await page.getByRole('link', { name: 'mail', exact: true }).waitFor();
        assert.equal(await page.getByRole('link', { name: 'reports', exact: true }).count(), 0);
        await tab.go('#/queues/reports');
        await page
          .getByText(/may not read|Not found/)
          .first()
          .waitFor();
      });
    });

    it('that are revoked lead to the sign-in, and back to the same page', async () => {
      const body = { name: 'for a while', scopes: ['read'] };
      const made = await call(server.api, 'POST', '/v1/tokens', body, secrets.admin);
      await on(server, { token: made.token }, async (tab, page) => {
        await tab.open('#/jobs?type=report');
        await page.getByRole('link', { name: 'report-1', exact: true }).waitFor();
        await call(server.api, 'DELETE', `/v1/tokens/${made.id}`, undefined, secrets.admin);
        await page.getByRole('button', { name: 'Sign in' }).waitFor({ timeout: 15_000 });
        await page.getByLabel('Access token').fill(secrets.reader);
        await page.getByRole('button', { name: 'Sign in' }).click();
        await page.getByRole('link', { name: 'report-1', exact: true }).waitFor();
      });
    });

    it('are created with bounds, shown once, and revoked', async () => {
      await on(server, { token: secrets.admin }, async (tab, page) => {
        await tab.open('#/settings');
        await page.getByRole('row', { name: /^console.read_only/ }).waitFor();
        await page.getByRole('button', { name: 'New token …' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Name').fill('producer');
        await dialog.getByLabel('enqueue', { exact: false }).first().check();
        await dialog.getByLabel('Only these queues').fill('mail');
        await dialog.getByRole('button', { name: 'Create the token' }).click();
        await page.getByText('it is shown only once').waitFor();
        const secret = await page.locator('.secret code').innerText();
        assert.ok(secret.length > 20);
        await page.getByRole('button', { name: 'I have kept it' }).click();
        await page.getByRole('button', { name: 'Revoke producer' }).click();
        await page.getByRole('button', { name: 'Revoke the token' }).click();
        await page.getByText('producer is revoked.').waitFor();
        assert.equal(
          (
            await fetch(`${server.api}/v1/queues`, {
              headers: { authorization: `Bearer ${secret}` },
            })
          ).status,
          401,
        );
      });
    });
  });

  describe('the demo', { concurrency: 1 }, () => {
    it('is shown on every page while it runs', async () => {
      const server = await serve(PROGRAM, DIST, {
        args: ['demo', '--keep', '--jobs', '60'],
        flag: '--port',
      });
      try {
        await on(server, {}, async (tab, page) => {
          await tab.open('#/overview');
          await page.getByRole('link', { name: 'demo-shop' }).waitFor();
          for (const place of [
            ...LISTS,
            'queues/demo-shop',
            'queues/demo-paced',
            'types/demo-flaky',
          ]) {
            await tab.go(`#/${place}`);
            assert.equal(await page.locator('.failure').count(), 0, place);
          }
          await tab.go('#/jobs?phase=failed');
          await page.locator('tbody tr .id').first().click();
          await page.getByText('Ended failed').waitFor();
        });
      } finally {
        await server.stop();
      }
    });
  });

  describe('deployments', { concurrency: 1 }, () => {
    /** Answers the session of the server with some fields replaced. */
    const session = async (page, change) => {
      const found = await call(full.api, 'GET', '/v1/session');
      await page.route('**/v1/session', (route) => route.fulfill({ json: change(found) }));
    };

    it('below a prefix work as at the root', async () => {
      const proxy = await startProxy(full.api, DIST, '/ops/queue');
      try {
        await on(proxy, {}, async (tab, page) => {
          await tab.open('#/jobs?type=report');
          await page.getByRole('link', { name: 'report-1', exact: true }).click();
          await page.getByText('Attempt 1 failed').waitFor();
        });
      } finally {
        await proxy.stop();
      }
    });

    it('that are read-only offer no change', async () => {
      const server = await serve(PROGRAM, DIST, {
        env: {
          TIDEGATE_CONSOLE__READ_ONLY: 'true',
          TIDEGATE_CONSOLE__TITLE: 'Nightwatch',
          TIDEGATE_CONSOLE__SERVERS__EU: 'https://eu.example',
        },
      });
      try {
        await sample(server.api);
        await on(server, {}, async (tab, page) => {
          await tab.open('#/queues/mail');
          await page.getByRole('heading', { name: 'Why is it idle or slow?' }).waitFor();
          for (const place of [
            'queues/mail',
            'jobs',
            'jobs/report/report-1',
            'settings',
            'schedules',
          ]) {
            await tab.go(`#/${place}`);
            const changing = await page
              .locator('main')
              .getByRole('button', { name: /…$|Run now|Enqueue/ })
              .count();
            assert.equal(changing, 0, place);
          }
          await page.getByText('read only').first().waitFor();
          assert.match(await page.title(), /Nightwatch/);
          assert.equal(
            await page.getByRole('link', { name: 'eu' }).getAttribute('href'),
            'https://eu.example/',
          );
        });
      } finally {
        await server.stop();
      }
    });

    it('without a server process are polled, rarely', async () => {
      await on(full, {}, async (tab, page) => {
        let [streams, reads] = [0, 0];
        page.on('request', (request) => {
          if (request.url().includes('/v1/stream')) streams += 1;
          if (/\/v1\/(overview|queues)/.test(request.url())) reads += 1;
        });
        await session(page, (found) => ({
          ...found,
          server: {
            ...found.server,
            deployment_mode: 'serverless',
            stream: false,
            simulate: false,
          },
        }));
        await tab.open('#/overview');
        await page.getByText('Polling').waitFor();
        const before = reads;
        await page.waitForTimeout(3000);
        assert.equal(streams, 0);
        assert.equal(reads, before, 'no further read within three seconds');
        // The user may want them more often, and this browser keeps it.
        await page.getByLabel('Read again').selectOption('every 2 s');
        await until('further reads', () => reads > before + 1);
        await page.reload();
        await page.getByText('Polling').waitFor();
        assert.equal(await page.getByLabel('Read again').inputValue(), '2');
        await page.getByLabel('Read again').selectOption('as usual');
        assert.deepEqual(await tab.axe(), []);
      });
    });

    it('with an identity provider offer it', async () => {
      await on(full, {}, async (tab, page) => {
        await session(page, (found) => ({
          ...found,
          authenticated: false,
          scopes: [],
          server: undefined,
          sign_in: ['token', 'oidc'],
        }));
        await tab.open('#/jobs?phase=failed');
        const link = page.getByRole('link', { name: 'Sign in with your organisation' });
        assert.equal(
          await link.getAttribute('href'),
          './console/sign-in?return=%23%2Fjobs%3Fphase%3Dfailed',
        );
        await tab.go('#/sign-in?error=the+account+is+locked');
        await page.getByRole('alert').getByText('the account is locked').waitFor();
      });
    });
  });

  describe('histories', { concurrency: 1 }, () => {
    it('of a day are a choice that the address keeps', async () => {
      await on(full, {}, async (tab, page) => {
        // The server itself has no step of a day before five minutes.
        const hour = 3_600_000;
        const first = Math.floor((Date.now() - 20 * hour) / 300_000) * 300_000;
        const points = Array.from({ length: 200 }, (_, n) => ({
          ...{ at: new Date(first + n * 300_000).toISOString(), enqueued: 9, started: 9 },
          ...{ finished: 8, failed: 1, scheduled: 0, ready: n, retrying: 2, running: 3 },
          run_seconds: { p50: 1, p95: 2, p99: 3 },
        }));
        const asked = [];
        await page.route('**/history?range=day', async (route) => {
          asked.push(new URL(route.request().url()).pathname);
          const answer = await route.fetch();
          const json = await answer.json();
          assert.equal(json.step_seconds, 300);
          await route.fulfill({ json: { ...json, from: points[0].at, points } });
        });
        for (const place of ['queues/mail', 'types/mail']) {
          await tab.open(`#/${place}`);
          await page.getByRole('heading', { name: 'Last hour' }).waitFor();
          await page.getByRole('button', { name: 'Day', exact: true }).click();
          await page.getByRole('heading', { name: 'Last day' }).waitFor();
          await page.getByText('Throughput, mean of five minutes').waitFor();
          await page.getByRole('img', { name: /Jobs: ready 199, retrying 2/ }).waitFor();
          assert.match(page.url(), /range=day/);
          assert.deepEqual(await tab.axe(), []);
          await page.reload();
          await page.getByRole('heading', { name: 'Last day' }).waitFor();
          await page.getByRole('button', { name: 'Hour', exact: true }).click();
          await page.getByRole('heading', { name: 'Last hour' }).waitFor();
          assert.doesNotMatch(page.url(), /range=/);
        }
        assert.ok(asked.includes('/v1/queues/mail/history'), asked.join());
        assert.ok(asked.includes('/v1/job-types/mail/history'), asked.join());
        // That of the server, as it is.
        await page.unroute('**/history?range=day');
        await tab.open('#/queues/mail?range=day');
        await page.getByText(/Nothing is recorded of the last day|Throughput, mean/).waitFor();
      });
    });
  });

  describe('workers', { concurrency: 1 }, () => {
    it('are stopped after a question, and learn of it', async () => {
      const worker = 'host-9-9';
      await call(full.api, 'PUT', `/v1/workers/${worker}`, { capacity: 3, types: ['mail'] });
      await on(full, {}, async (tab, page) => {
        await tab.open('#/workers');
        await page.getByRole('button', { name: `Stop ${worker}` }).click();
        await page.getByText('It finishes the 0 jobs that it runs').waitFor();
        assert.deepEqual(await tab.axe(), []);
        await page.getByRole('button', { name: 'Stop the worker' }).click();
        const row = page.getByRole('row', { name: new RegExp(worker) });
        await row.getByText('stopping').waitFor();
        const lease = { worker, types: ['mail'], max: 1 };
        const answer = await call(full.api, 'POST', '/v1/leases', lease);
        assert.deepEqual(answer, { leases: [], reports: [], stop: true });
        await call(full.api, 'DELETE', `/v1/workers/${worker}?keep_drain=true`);
        await row.waitFor({ state: 'detached' });
      });
    });

    it('have charts of an hour and a day', async () => {
      const worker = 'host-9-10';
      await call(full.api, 'PUT', `/v1/workers/${worker}`, { capacity: 3, types: ['mail'] });
      await on(full, {}, async (tab, page) => {
        const step = { hour: 10, day: 300 };
        await page.route('**/v1/workers/*/history?range=*', async (route) => {
          const answer = await route.fetch();
          const json = await answer.json();
          const range = new URL(route.request().url()).searchParams.get('range');
          assert.equal(json.step_seconds, step[range]);
          const last = Math.floor(Date.now() / 1000 / step[range] - 2) * step[range];
          const points = Array.from({ length: 20 }, (_, n) => ({
            at: new Date((last - (19 - n) * step[range]) * 1000).toISOString(),
            ...{ finished: 8, failed: 1, running: n },
          }));
          await route.fulfill({ json: { ...json, from: points[0].at, points } });
        });
        await tab.open('#/workers');
        await page.getByRole('link', { name: `Charts of ${worker}` }).click();
        await page.getByRole('heading', { name: `${worker}: last hour` }).waitFor();
        await page.getByRole('img', { name: /Running jobs: running 19/ }).waitFor();
        await page.getByText('Attempts that ended, mean of a minute').waitFor();
        assert.deepEqual(await tab.axe(), []);
        await page.getByRole('button', { name: 'Day', exact: true }).click();
        await page.getByRole('heading', { name: `${worker}: last day` }).waitFor();
        await page.getByText('Attempts that ended, mean of five minutes').waitFor();
        assert.match(page.url(), /range=day/);
        await page.getByRole('link', { name: `Close charts of ${worker}` }).click();
        await page.getByText('Attempts that ended').waitFor({ state: 'detached' });
        // That of the server, as it is.
        await page.unroute('**/v1/workers/*/history?range=*');
        await tab.open(`#/workers?worker=${worker}`);
        await page.getByText(/Nothing happened in the last hour|Attempts that ended/).waitFor();
      });
      await call(full.api, 'DELETE', `/v1/workers/${worker}`);
    });
  });

  describe('schedules', { concurrency: 1 }, () => {
    it('have a picture of what they did', async () => {
      await call(full.api, 'PUT', '/v1/queues/ticks', {});
      await call(full.api, 'PUT', '/v1/job-types/tick', { queue: 'ticks', max_attempts: 1 });
      await call(full.api, 'PUT', '/v1/schedules/often', { type: 'tick', every_seconds: 2, data: 1 });
      for (const status of ['succeeded', 'failed']) {
        const { leases } = await call(full.api, 'POST', '/v1/leases', {
          ...{ types: ['tick'], max: 1, wait_seconds: 20 },
        });
        const { job, attempt } = leases[0];
        const message = status === 'failed' ? { message: 'no' } : {};
        await call(full.api, 'POST', `/v1/jobs/tick/${job.id}`, { status, attempt, ...message });
      }
      await on(full, {}, async (tab, page) => {
        await tab.open('#/schedules');
        const picture = page.getByRole('img', { name: /1 succeeded, 1 failed.* late/ });
        await picture.waitFor();
        assert.equal(await picture.locator('rect.failed').count(), 1);
        await page.getByRole('link', { name: 'often' }).click();
        await page.getByRole('heading', { name: 'Previous ten' }).waitFor();
        await picture.waitFor();
        assert.deepEqual(await tab.axe(), []);
      });
      await call(full.api, 'DELETE', '/v1/schedules/often');
    });
  });

  describe('triggers', { concurrency: 1 }, () => {
    it('show their latest events, and more of them', async () => {
      await call(full.api, 'PUT', '/v1/triggers/many', {
        filter: { type: 'order.many' },
        enqueue: { type: 'report', data: null },
      });
      const events = Array.from({ length: 30 }, (_, n) => ({
        ...{ specversion: '1.0', id: `many-${n}`, source: '/shop', type: 'order.many' },
      }));
      const sent = await fetch(`${full.api}/v1/events`, {
        method: 'POST',
        headers: { 'content-type': 'application/cloudevents-batch+json' },
        body: JSON.stringify(events),
      });
      assert.ok(sent.ok, await sent.text());
      await on(full, {}, async (tab, page) => {
        await tab.open('#/triggers/many');
        const rows = page.getByRole('row', { name: /order\.many many-/ });
        await until('20 events', async () => (await rows.count()) === 20);
        await page.getByRole('button', { name: 'More events' }).click();
        await until('30 events', async () => (await rows.count()) === 30);
        assert.equal(await page.getByRole('button', { name: 'More events' }).count(), 0);
      });
    });
  });

  describe('what if', { concurrency: 1 }, () => {
    it('shows pictures side by side, and applies the settings', async () => {
      await recorded(full.api);
      await on(full, {}, async (tab, page) => {
        await tab.open('#/queues/busy');
        await page.getByRole('button', { name: 'Try other settings' }).click();
        await page.getByRole('spinbutton', { name: 'Concurrency' }).first().fill('7');
        await page.getByRole('button', { name: 'Simulate' }).click();
        const table = page.getByRole('table').filter({ hasText: 'Simulated, changed settings' });
        await table.waitFor();
        assert.match(await table.innerText(), /Start delay p99/);
        await page.locator('.outcome canvas').nth(2).waitFor();
        assert.deepEqual(await tab.axe(), []);
        await page.getByRole('button', { name: 'Apply these settings …' }).click();
        await page.getByRole('button', { name: 'Preview the changes' }).click();
        await page.getByRole('row', { name: 'concurrency 2 7' }).waitFor();
        await page.keyboard.press('Escape');
        // Both workers ran a job whenever the limit let them: how many more they can run is unknown.
        await page.getByText('as many at once as the limits allow').waitFor();
        await page.getByLabel('Jobs at once at the workers').fill('3');
        await page.getByRole('button', { name: 'Simulate' }).click();
        await page.getByText('at most 3 at once at the workers').waitFor();
      });
    });

    it('runs another version of the throttler', async () => {
      await paced(full.api, join(REPOSITORY, 'plugins/dist/rate-limit.wasm'));
      await on(full, {}, async (tab, page) => {
        await tab.open('#/queues/paced?part=what-if');
        const version = page.getByLabel('Version of the throttler');
        await version.fill('2');
        const answered = page.waitForResponse('**/v1/queues/paced/simulate');
        await page.getByRole('button', { name: 'Simulate' }).click();
        const answer = await answered;
        assert.equal(answer.request().postDataJSON().throttler_version, 2);
        assert.equal(answer.status(), 200, await answer.text());
        const { changed, current } = await answer.json();
        assert.deepEqual(changed, current, 'the second version decides as the first one');
        await page
          .getByRole('table')
          .filter({ hasText: 'Simulated, changed settings' })
          .waitFor();
        await version.fill('9');
        await page.getByRole('button', { name: 'Simulate' }).click();
        await page.getByRole('alert').getByText(/version/).waitFor();
      });
    });
  });

  describe('many queues', { concurrency: 1 }, () => {
    it('are shown at once, and filtered', async () => {
      const server = await serve(PROGRAM, DIST);
      try {
        await many(server.api, 200);
        await on(server, {}, async (tab, page) => {
          await tab.open('#/overview');
          const began = Date.now();
          await page.reload();
          await page.getByRole('link', { name: 'queue-199' }).waitFor();
          assert.ok(Date.now() - began < 4000, `the overview took ${Date.now() - began} ms`);
          await page.getByLabel('Queues whose name contains').fill('queue-12');
          await until('ten rows', async () => (await page.locator('tbody tr').count()) === 10);

          await tab.go('#/jobs');
          const ids = () =>
            page.locator('tbody tr').evaluateAll((rows) => rows.map((row) => row.dataset.row));
          const first = await ids();
          assert.equal(first.length, 50);
          await page.getByRole('link', { name: 'Next page' }).click();
          const other = (list) => list.length === 50 && !list.some((id) => first.includes(id));
          await until('the second page', async () => other(await ids()));
          await page.goBack();
          await until('the first page', async () => (await ids()).join() === first.join());
          await page.getByLabel('a page').selectOption('20');
          await until('20 rows', async () => (await ids()).length === 20);
        });
      } finally {
        await server.stop();
      }
    });
  });
});
