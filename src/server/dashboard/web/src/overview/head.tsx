// What is above the table of queues: sums, and the findings of doctor.

import { get, optional } from '../api/client';
import { serverless } from '../api/session';
import type { Doctor, QueueOverview } from '../api/types';
import { count, instant, plural, rate, span } from '../lib/format';
import { totals } from '../lib/overview';
import { href } from '../lib/route';
import { now, useLoad } from '../state/live';
import { Badge } from '../ui/basics';

const DOCTOR_MS = 60_000;

/** Sums over all queues. */
export function Head({ rows }: { rows: QueueOverview[] }) {
  const sums = totals(rows);
  const figures: [string, preact.ComponentChildren, string | null][] = [
    ['ready', count(sums.ready), href(['jobs'], { phase: 'ready' })],
    ['running', count(sums.running), href(['jobs'], { phase: 'running' })],
    ['retrying', count(sums.retrying), href(['jobs'], { phase: 'retrying' })],
    ['failed', count(sums.failed), href(['jobs'], { phase: 'failed' })],
    ['in', rate(sums.inPerSecond), null],
    ['out', rate(sums.outPerSecond), null],
    [
      'longest due',
      sums.oldest
        ? span(Math.max(0, (now.value - (instant(sums.oldest) ?? now.value)) / 1000))
        : '–',
      null,
    ],
  ];
  return (
    <ul class="figures" aria-label="All queues">
      {figures.map(([name, value, to]) => (
        <li key={name} class={name === 'failed' && sums.failed ? 'bad' : ''}>
          {to ? (
            <a href={to}>
              <b>{value}</b> {name}
            </a>
          ) : (
            <span>
              <b>{value}</b> {name}
            </span>
          )}
        </li>
      ))}
    </ul>
  );
}

/** What doctor found, with its advice; nothing if all is well. */
export function Findings() {
  const { data } = useLoad('doctor', (signal) => optional(get<Doctor>('v1/doctor', {}, signal)), {
    every: serverless.value ? 5 * DOCTOR_MS : DOCTOR_MS,
  });
  const bad =
    data?.checks.filter((check) => check.level === 'error' || check.level === 'warning') ?? [];
  if (!bad.length) return null;
  return (
    <details class="banner warn" open={bad.length < 4}>
      <summary>
        <strong>Doctor: {plural(bad.length, 'finding')}.</strong>{' '}
        <span class="first">
          {bad[0]?.about}: {bad[0]?.finding}
        </span>
      </summary>
      <ul class="findings">
        {bad.map((check) => (
          <li key={check.about + check.finding}>
            <Badge word={check.level} /> <strong>{check.about}:</strong> <bdi>{check.finding}</bdi>
            {check.advice && <div>→ {check.advice}</div>}
          </li>
        ))}
      </ul>
    </details>
  );
}
