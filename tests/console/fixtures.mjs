// What the servers of the tests contain.

import { readFile } from 'node:fs/promises';
import { call, until } from './servers.mjs';

/** Texts that must be shown as they are. */
export const HOSTILE = [
  '<script>document.title = "pwned"</script>',
  '<img src=x onerror="document.title=\'pwned\'">',
  '\u202eright to left \u0627\u0644\u0639\u0631\u0628\u064a\u0629',
  '😀'.repeat(40),
  'nul \u0000 and bell \u0007',
  'javascript:alert(1)',
  'long '.repeat(150),
];

const STACK = 'Error: mailbox full\n    at deliver (mail.js:12:9)\n    at run (worker.js:40:3)';

/** Leases jobs as a worker. */
async function lease(api, worker, queue, max) {
  const { leases } = await call(api, 'POST', '/v1/leases', {
    worker,
    queue,
    max,
    lease_seconds: 600,
  });
  return leases;
}

const report = (api, { job, attempt }, body) =>
  call(api, 'POST', `/v1/jobs/${job.type}/${job.id}`, { attempt, ...body });

/** Queues, types, jobs in every phase, a schedule, a trigger, a dead letter. Answers the ids of some. */
export async function sample(api) {
  await call(api, 'PUT', '/v1/queues/mail', {
    concurrency: 2,
    constraints: [{ name: 'per-tenant', per: 'tenant', concurrency: 1 }],
  });
  await call(api, 'PUT', '/v1/job-types/mail', {
    queue: 'mail',
    attributes: { tenant: '/tenant' },
    max_attempts: 3,
    retry: {
      strategy: 'exponential',
      config: { base_seconds: 600, max_seconds: 600, jitter: 'none' },
    },
  });
  await call(api, 'PUT', '/v1/queues/reports', {
    constraints: [{ name: 'pace', rate: { count: 100, per_seconds: 1 } }],
  });
  await call(api, 'PUT', '/v1/job-types/report', { queue: 'reports', max_attempts: 1 });

  const fail = {
    status: 'failed',
    message: 'HTTP 550: mailbox 17 is full',
    error: { code: 550, stack: STACK },
  };
  await enqueue(api, 'report', 6, (n) => ({ id: `report-${n}`, data: { n, big: 'BIG' } }));
  for (const one of await lease(api, 'host-1-17', 'reports', 4)) {
    await report(api, one, {
      ...fail,
      log: [
        { text: 'connecting', level: 'info' },
        { text: 'refused', level: 'error', fields: { code: 550 } },
      ],
    });
  }
  for (const one of await lease(api, 'host-1-17', 'reports', 2))
    await report(api, one, { status: 'succeeded', result: { pages: 3 } });

  await enqueue(api, 'mail', 8, (n) => ({
    id: `mail-${n}`,
    data: { tenant: n < 5 ? 'acme' : `t${n}`, n },
  }));
  await enqueue(api, 'mail', 1, () => ({
    id: 'mail-later',
    data: { tenant: 'acme' },
    delay_seconds: 86_400,
  }));
  const [retried] = await lease(api, 'host-2-9', 'mail', 1);
  await report(api, retried, fail);
  const running = await lease(api, 'host-2-9', 'mail', 2);
  for (const one of running) {
    const beat = {
      attempt: one.attempt,
      progress: 40,
      note: 'half of it',
      log: [{ text: 'started' }, { text: 'sending', level: 'debug' }],
    };
    await call(api, 'POST', `/v1/jobs/${one.job.type}/${one.job.id}/heartbeat`, beat);
  }
  await call(api, 'DELETE', '/v1/jobs/mail/mail-later');

  await call(api, 'PUT', '/v1/schedules/nightly', {
    type: 'report',
    cron: '0 3 * * *',
    tz: 'Europe/Berlin',
    data: { all: true },
  });
  await call(api, 'POST', '/v1/schedules/nightly/run');
  await call(api, 'PUT', '/v1/triggers/orders', {
    filter: { type: 'order.paid' },
    enqueue: { type: 'report', data: { order: { $expr: 'data.id' } } },
  });
  await call(api, 'PUT', '/v1/triggers/broken', {
    filter: { type: 'order.lost' },
    enqueue: { type: { $expr: 'data.kind' } },
  });
  const event = { specversion: '1.0', id: 'e1', source: '/shop', data: { id: 7 } };
  const headers = { 'content-type': 'application/cloudevents+json' };
  for (const type of ['order.paid', 'order.lost']) {
    const answer = await fetch(`${api}/v1/events`, {
      method: 'POST',
      headers,
      body: JSON.stringify({ ...event, type }),
    });
    if (!answer.ok) throw new Error(`the event: ${await answer.text()}`);
  }
  return { failed: 'report-1', retried: retried.job.id, running: running[0].job.id };
}

async function enqueue(api, type, jobs, of) {
  const list = Array.from({ length: jobs }, (_, n) => ({ type, ...of(n + 1) }));
  const { results } = await call(api, 'POST', '/v1/jobs/batch', { jobs: list });
  const bad = results.find((one) => one.status >= 400);
  if (bad) throw new Error(`enqueue: ${JSON.stringify(bad.error)}`);
}

/** Two versions of a plugin, the second as the shadow of the first, at the queue `shaped`. */
export async function plugin(api, wasm) {
  for (const [n, file] of wasm.entries()) {
    const answer = await fetch(`${api}/v1/plugins/shape${n ? '?shadow=true' : ''}`, {
      method: 'PUT',
      headers: { 'content-type': 'application/wasm' },
      body: await readFile(file),
    });
    if (!answer.ok) throw new Error(`the plugin: ${await answer.text()}`);
  }
}

/** Jobs, workers and errors with hostile texts. Answers the id of one. */
export async function hostile(api) {
  await call(api, 'PUT', '/v1/queues/odd', {
    constraints: [{ name: '<b>limit</b>', per: 'who', concurrency: 1 }],
  });
  await call(api, 'PUT', '/v1/job-types/odd', {
    queue: 'odd',
    max_attempts: 1,
    attributes: { who: '/who' },
  });
  // Attributes and keys may not have a NUL, and are short.
  const safe = HOSTILE.map((text) => text.replace('\u0000', '').slice(0, 40));
  const jobs = HOSTILE.map((text, n) => ({
    type: 'odd',
    id: `odd-${n}`,
    data: { who: safe[n], text, [text.slice(0, 60)]: [text] },
    correlation_key: safe[n],
  }));
  const { results } = await call(api, 'POST', '/v1/jobs/batch', { jobs });
  const bad = results.find((one) => one.status >= 400);
  if (bad) throw new Error(`enqueue: ${JSON.stringify(bad.error)}`);
  const leases = await lease(api, '<i>worker</i>', 'odd', HOSTILE.length);
  for (const [n, one] of leases.entries()) {
    const text = HOSTILE[n];
    await report(api, one, {
      status: 'failed',
      message: text,
      error: { stack: `${text}\n${text}`, [text.slice(0, 60)]: text },
      log: [{ text }],
    });
  }
  await until(
    'the failures',
    async () =>
      (await call(api, 'GET', '/v1/jobs?queue=odd&phase=failed')).jobs.length === leases.length,
  );
  return leases[0].job.id;
}

/** A queue `busy` whose jobs have run, for a simulation. */
export async function recorded(api) {
  await call(api, 'PUT', '/v1/queues/busy', { concurrency: 2 });
  await call(api, 'PUT', '/v1/job-types/busy', { queue: 'busy' });
  await enqueue(api, 'busy', 8, (n) => ({ id: `busy-${n}`, data: n }));
  for (let round = 0; round < 4; round += 1) {
    for (const one of await lease(api, 'host-3-1', 'busy', 2)) {
      await report(api, one, { status: 'succeeded' });
    }
  }
}

/**
 * A queue `paced` whose throttler admits 100 jobs a second, and whose jobs have run. The throttler has
 * a second version in shadow: the same component with a section that nothing reads.
 */
export async function paced(api, wasm) {
  const component = await readFile(wasm);
  const section = Buffer.concat([Buffer.from([0, 7, 6]), Buffer.from('second')]);
  for (const [at, body] of [component, Buffer.concat([component, section])].entries()) {
    const answer = await fetch(`${api}/v1/plugins/pace${at ? '?shadow=true' : ''}`, {
      method: 'PUT',
      headers: { 'content-type': 'application/wasm' },
      body,
    });
    if (!answer.ok) throw new Error(`the plugin: ${await answer.text()}`);
  }
  await call(api, 'PUT', '/v1/queues/paced', {
    throttler: { plugin: 'pace', config: { count: 100, per_seconds: 1 } },
  });
  await call(api, 'PUT', '/v1/job-types/paced', { queue: 'paced' });
  await enqueue(api, 'paced', 6, (n) => ({ id: `paced-${n}`, data: n }));
  let left = 6;
  while (left > 0) {
    const body = { types: ['paced'], max: left, worker: 'host-4-1', wait_seconds: 20 };
    const { leases } = await call(api, 'POST', '/v1/leases', body);
    for (const one of leases) await report(api, one, { status: 'succeeded' });
    left -= leases.length;
  }
}

/** Many queues with jobs, for the time that an overview takes. */
export async function many(api, queues) {
  const names = Array.from({ length: queues }, (_, n) => `queue-${String(n).padStart(3, '0')}`);
  const make = async (name) => {
    await call(api, 'PUT', `/v1/queues/${name}`, {});
    await call(api, 'PUT', `/v1/job-types/${name}`, { queue: name });
  };
  for (let at = 0; at < names.length; at += 20) {
    await Promise.all(names.slice(at, at + 20).map(make));
  }
  for (let at = 0; at < names.length; at += 100) {
    const jobs = names.slice(at, at + 100).flatMap((type) => [
      { type, data: 1 },
      { type, data: 2 },
    ]);
    await call(api, 'POST', '/v1/jobs/batch', { jobs });
  }
}
