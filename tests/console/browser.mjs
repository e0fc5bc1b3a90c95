// A browser whose pages fail the test on an error in the console, an exception or a violation of the policy.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Answers of the server that the console expects are no errors of the console. */
const ANSWERS =
  /^Failed to load resource: (the server responded with a status of [45]\d\d|net::ERR_)/;

/** Starts Chromium with a directory of its own. */
export function launch(executablePath) {
  return chromium.launch({
    executablePath,
    args: [
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
}

/** A page, and what went wrong on it. */
export class Tab {
  constructor(page, base) {
    this.page = page;
    this.base = base;
    this.wrong = [];
    page.on('console', (message) => {
      if (message.type() === 'error' && !ANSWERS.test(message.text()))
        this.wrong.push(`console: ${message.text()}`);
    });
    page.on('pageerror', (error) => this.wrong.push(`exception: ${error.stack ?? error}`));
    page.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith(base) && !url.startsWith('data:'))
        this.wrong.push(`request to elsewhere: ${url}`);
    });
  }

  /** Opens a place of the console, and waits until it shows its heading and no "Loading". */
  async open(hash = '') {
    await this.page.goto(`${this.base}/${hash}`);
    await this.settled();
  }

  /** Goes to a place as a click on a link does. */
  async go(hash) {
    await this.page.evaluate((to) => {
      location.hash = to;
    }, hash);
    await this.settled();
  }

  async settled() {
    await this.page.locator('h1').first().waitFor();
    await this.page.waitForFunction(() => !document.querySelector('.loading'));
  }

  /** What axe finds on the page as it is; with `rules` only by these. */
  async axe(rules) {
    if (!(await this.page.evaluate(() => 'axe' in window))) await this.page.evaluate(AXE);
    return this.page.evaluate(async (only) => {
      const options = { resultTypes: ['violations'], preload: false, iframes: false };
      if (only) options.runOnly = only;
      const { violations } = await window.axe.run(document, options);
      const where = (node) => `${node.target} ${node.failureSummary?.split('\n')[1]?.trim() ?? ''}`;
      return violations.map(
        ({ id, impact, nodes }) => `${id} (${impact}): ${nodes.slice(0, 3).map(where).join(' | ')}`,
      );
    }, rules);
  }

  /** Ends the page; an error if anything went wrong. */
  async close() {
    await this.page.context().close();
    if (this.wrong.length) throw new Error(this.wrong.join('\n'));
  }
}

/** A new tab in a context of its own. `token` signs it in. */
export async function newTab(
  browser,
  server,
  { token, phone = false, dark = false, width = 1366 } = {},
) {
  const context = await browser.newContext({
    viewport: phone ? { width: 390, height: 844 } : { width, height: 850 },
    colorScheme: dark ? 'dark' : 'light',
    hasTouch: phone,
    timezoneId: 'Europe/Berlin',
    locale: 'en-GB',
    reducedMotion: 'reduce',
  });
  context.setDefaultTimeout(8000);
  await context.addInitScript((secret) => {
    addEventListener('securitypolicyviolation', (event) => {
      console.error(`policy: ${event.violatedDirective} ${event.blockedURI} ${event.sample}`);
    });
    if (secret)
      sessionStorage.setItem(`tidegate.token ${new URL('.', location.href).pathname}`, secret);
  }, token ?? '');
  return new Tab(await context.newPage(), server.url);
}
