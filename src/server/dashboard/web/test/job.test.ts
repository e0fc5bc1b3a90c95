import { describe, expect, it } from 'vitest';
import type { History, Job, Queue, QueueOverview, Schedule } from '../src/api/types';
import { columnsOf, smooth } from '../src/lib/history';
import { origin, traceUrl } from '../src/lib/links';
import { marksOf } from '../src/lib/marks';
import { barsOf, barsText, pastOf } from '../src/lib/occurrences';
import {
  failureShare,
  isExplained,
  minuteIndex,
  minutesOf,
  rowOf,
  totals,
} from '../src/lib/overview';
import { extent, timeline } from '../src/lib/timeline';

const at = (second: number) => new Date(Date.UTC(2026, 0, 31, 8, 0, second)).toISOString();
const NOW = Date.parse(at(100));

function job(part: Partial<Job>): Job {
  const usual = {
    id: 'a',
    type: 'mail',
    queue: 'default',
    state: 'scheduled',
    phase: 'ready',
    attempt: 0,
    max_attempts: 3,
    priority: 100,
    weight: 1,
    critical: false,
    created_at: at(0),
    due_at: at(0),
    run_at: at(0),
    attributes: {},
    history: [],
    timeout_seconds: 60,
    retry: { strategy: 'exponential' },
    keep_result: { seconds: 1 },
    result: null,
  };
  return { ...usual, ...part } as Job;
}

describe('the timeline', () => {
  const failed = {
    attempt: 1,
    started_at: at(2),
    ended_at: at(5),
    duration_ms: 3000,
    outcome: 'failed' as const,
    error: { reason: 'failed' as const, message: 'no', details: null },
    retry_at: at(15),
    worker: 'w1',
  };

  it('has waits, attempts and decisions in order', () => {
    const steps = timeline(
      job({
        state: 'succeeded',
        ended_at: at(20),
        history: [
          failed,
          {
            attempt: 2,
            started_at: at(18),
            ended_at: at(20),
            duration_ms: 2000,
            outcome: 'succeeded',
          },
        ],
      }),
      NOW,
      null,
    );
    expect(steps.map(({ kind, label, from, to }) => [kind, label, (to - from) / 1000])).toEqual([
      ['event', 'Accepted', 0],
      ['wait', 'Ready, waited to start', 2],
      ['failed', 'Attempt 1 failed', 3],
      ['event', 'Retry decided', 0],
      ['backoff', 'Waited for the retry', 10],
      ['wait', 'Ready, waited to start', 3],
      ['succeeded', 'Attempt 2 succeeded', 2],
      ['ended', 'Ended succeeded', 0],
    ]);
    expect(steps[2]?.error?.message).toBe('no');
  });

  it('explains the present wait', () => {
    const why = {
      state: 'scheduled',
      phase: 'ready',
      reason: 'full',
      held_by: { kind: 'concurrency' },
    };
    const steps = timeline(job({}), NOW, why);
    expect(steps.at(-1)).toMatchObject({
      kind: 'wait',
      label: 'Held by concurrency',
      detail: 'full',
      open: true,
    });
  });

  it('divides a wait at the due time', () => {
    const steps = timeline(job({ due_at: at(40), run_at: at(40) }), NOW, null);
    expect(steps.map(({ kind, from, to }) => [kind, (to - from) / 1000])).toEqual([
      ['event', 0],
      ['backoff', 40],
      ['wait', 60],
    ]);
  });

  it('shows the running attempt with its progress', () => {
    const running = {
      worker: 'w1',
      lease_expires_at: at(130),
      timeout_at: at(200),
      cancel: false,
      progress: { percent: 40, note: 'half' },
    };
    const steps = timeline(
      job({ state: 'running', attempt: 1, started_at: at(90), running } as Partial<Job>),
      NOW,
      null,
    );
    expect(steps.at(-1)).toMatchObject({ kind: 'run', open: true, detail: 'at w1, 40 %, half' });
    expect(
      extent(
        steps,
        steps[steps.length - 1] ?? steps[0] ?? { kind: 'event', from: 0, to: 0, label: '' },
      ),
    ).toEqual({ left: 0.9, width: 0.1 });
  });

  it('of a job that never started ends with its wait', () => {
    const steps = timeline(job({ state: 'cancelled', ended_at: at(9) }), NOW, null);
    expect(steps.map(({ label }) => label)).toEqual([
      'Accepted',
      'Waited, never started',
      'Ended cancelled',
    ]);
  });
});

describe('links of a job', () => {
  it('lead to the schedule or the trigger that made it', () => {
    const schedule = { label: 'schedule', name: 'a/b', href: '#/schedules/a%2Fb', event: null };
    const occurrence = at(0);
    expect(origin(job({ origin: { schedule: 'a/b', occurrence } }))).toEqual({
      ...schedule,
      at: occurrence,
    });
    expect(origin(job({ origin: { schedule: 'a/b' } }))).toEqual({ ...schedule, at: null });
    const trigger = { label: 'trigger', name: 'orders', href: '#/triggers/orders', at: null };
    expect(origin(job({ origin: { trigger: 'orders', event: 'e', source: '/shop' } }))).toEqual({
      ...trigger,
      event: 'e of /shop',
    });
    expect(origin(job({ origin: { trigger: 'orders' } }))).toEqual({ ...trigger, event: null });
    expect(origin(job({ id: 'nightly:20260329T010000Z' }))).toBeNull();
  });

  it('lead to its trace, and only over HTTP', () => {
    const headers = { traceparent: '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01' };
    expect(traceUrl('https://t.example/{trace_id}?j={job_id}', job({ headers }))).toBe(
      'https://t.example/0af7651916cd43dd8448eb211c80319c?j=a',
    );
    expect(traceUrl('javascript:{trace_id}', job({ headers }))).toBeNull();
    expect(traceUrl('https://t.example/{trace_id}', job({}))).toBeNull();
  });
});

describe('marks of changes', () => {
  it('are those of one queue in the last hour, oldest first', () => {
    const entry = (second: number, path: string, status = 200) => ({
      at: at(second),
      caller: 'ops',
      action: 'patch_queue',
      path,
      status,
      request_id: '',
    });
    const entries = [
      entry(50, '/v1/queues/a/pause'),
      entry(40, '/v1/queues/ab'),
      entry(30, '/v1/queues/a'),
      entry(20, '/v1/queues/a', 400),
    ];
    expect(
      marksOf(entries, '/v1/queues/a', NOW, 3600).map((mark) => [
        mark.x * 1000 - Date.parse(at(0)),
        mark.text,
      ]),
    ).toEqual([
      [30_000, 'ops: patch queue'],
      [50_000, 'ops: patch queue'],
    ]);
    expect(marksOf(entries, '/v1/queues/a', NOW + 3_700_000, 3600)).toEqual([]);
  });
});

describe('histories', () => {
  const point = (second: number, part: object) => ({
    at: at(second),
    finished: 0,
    failed: 0,
    scheduled: 0,
    ready: 0,
    retrying: 0,
    running: 0,
    ...part,
  });
  const throughput = {
    over_seconds: 300,
    enqueued_per_second: 1,
    finished_per_second: 2,
    failed_per_second: 0.5,
  };

  it('repeat the levels of a step that was left out, and not its events', () => {
    const history: History = {
      step_seconds: 10,
      from: at(0),
      points: [point(0, { ready: 4, finished: 20 }), point(30, { ready: 1 })],
      throughput,
    };
    const { x, of } = columnsOf(history, Date.parse(at(50)));
    expect(x.length).toBe(12);
    expect(of.ready?.slice(-6)).toEqual([null, 4, 4, 4, 1, 1]);
    expect(of.finished?.slice(-6)).toEqual([null, 2, 0, 0, 0, 0]);
  });

  it('of a day begin a day ago, or when the server first knew something', () => {
    const step = { step_seconds: 300, throughput };
    const noon = Date.parse(at(0));
    const ago = (minutes: number) => new Date(noon - minutes * 60_000).toISOString();
    const old = { ...point(0, { ready: 7 }), at: ago(26 * 60) };
    const one = { ...point(0, { ready: 2, finished: 600 }), at: ago(10) };
    const long = columnsOf({ ...step, from: ago(26 * 60), points: [old, one] }, noon, 'day');
    expect([long.x.length, long.x[0]]).toEqual([288, noon / 1000 - 86_400]);
    expect(long.of.ready?.slice(-3)).toEqual([7, 2, 2]);
    expect(long.of.finished?.slice(-3)).toEqual([0, 2, 0]);
    const short = columnsOf({ ...step, from: ago(120), points: [one] }, noon, 'day');
    expect(short.x.length).toBe(24);
  });

  it('are smoothed over the steps that there are', () => {
    expect(smooth([6, 0, null, 3], 3)).toEqual([6, 3, null, 1.5]);
  });

  it('add up to minutes', () => {
    const minutes = minutesOf([
      point(0, { finished: 1, ready: 5 }),
      point(50, { finished: 2, ready: 3 }),
      point(60, { failed: 1 }),
    ]);
    expect(
      minutes.map(({ at: start, finished, failed, ready }) => [
        start.slice(14, 19),
        finished,
        failed,
        ready,
      ]),
    ).toEqual([
      ['00:00', 3, 0, 3],
      ['01:00', 0, 1, 0],
    ]);
    expect(minuteIndex(at(0), Date.parse(at(70)))).toBe(58);
    expect(minuteIndex(at(0), Date.parse(at(0)) + 3_700_000)).toBeNull();
  });

  it('make the rows of an overview', () => {
    const queue = {
      name: 'a',
      paused: true,
      status: { phases: { ready: 2, failed: 1 }, oldest_due_at: at(3), held: [] },
    } as unknown as Queue;
    const row = rowOf(queue, { step_seconds: 10, points: [], throughput });
    expect(failureShare(row)).toBe(0.25);
    expect(totals([row, rowOf(queue, null)])).toMatchObject({
      ready: 4,
      failed: 2,
      outPerSecond: 2,
      paused: 2,
      oldest: at(3),
    });
  });
});

describe('previous occurrences', () => {
  const made = (id: string, phase: string, more: object): [string, Job] => [
    id,
    { id, phase, history: [], ...more } as unknown as Job,
  ];
  const jobs = new Map([
    made('a', 'succeeded', {
      history: [{ duration_ms: 1000, waited_ms: 20 }, { duration_ms: 500 }],
    }),
    made('b', 'failed', { history: [{ duration_ms: 4000, waited_ms: 300 }] }),
    made('c', 'running', { started_at: at(10), running: { waited_ms: 10 } }),
    made('d', 'ready', {}),
  ]);
  const previous = ['d', 'c', 'b', 'a', 'gone'].map((job) => ({ at: at(0), job }));
  const schedule = { name: 's', previous } as unknown as Schedule;

  it('are bars, the oldest first', () => {
    const bars = barsOf(pastOf(schedule, jobs), Date.parse(at(15)));
    expect(bars).toEqual([
      { kind: 'none', took: null, delay: null },
      { kind: 'succeeded', took: 1.5, delay: 0.02 },
      { kind: 'failed', took: 4, delay: 0.3 },
      { kind: 'running', took: 5, delay: 0.01 },
      { kind: 'none', took: null, delay: null },
    ]);
    expect(barsText(bars)).toBe(
      '5 previous occurrences: 1 succeeded, 1 failed, 1 under way, at most 5 s long, at most 300 ms late',
    );
  });

  it('of a server that names only the latest are one bar', () => {
    const one = { last_job: 'a', last_occurrence: at(0) } as unknown as Schedule;
    expect(barsOf(pastOf(one, jobs), 0)).toHaveLength(1);
    expect(barsText(barsOf(pastOf({} as Schedule, jobs), 0))).toBe(
      '0 previous occurrences: 0 succeeded, 0 failed',
    );
  });
});

describe('queues that the server has not explained', () => {
  const row = (phases: object, explained_at: string | null) =>
    ({ phases, explained_at }) as unknown as QueueOverview;

  it('are unknown only with due jobs', () => {
    expect(isExplained(row({ ready: 3 }, null))).toBe(false);
    expect(isExplained(row({ ready: 3 }, at(0)))).toBe(true);
    expect(isExplained(row({ running: 3 }, null))).toBe(true);
  });
});
