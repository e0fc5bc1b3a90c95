// The life of a job as spans and points in time.

import type { Explanation, Failure, Job } from '../api/types';
import { holder, instant } from './format';

/** What a step of a life is, which gives its colour. */
export type StepKind = 'wait' | 'backoff' | 'run' | 'failed' | 'succeeded' | 'ended' | 'event';

/** A step of a life: a span, or a point where both ends are the same. */
export interface Step {
  kind: StepKind;
  from: number;
  to: number;
  label: string;
  detail?: string;
  attempt?: number;
  error?: Failure;
  /** Whether it goes on. */
  open?: boolean;
}

type Entry = Job['history'][number];

/** The steps of a job's life in order, up to now. `why` explains the present wait. */
export function timeline(job: Job, now: number, why: Explanation | null): Step[] {
  const created = instant(job.created_at) ?? now;
  const steps: Step[] = [
    event(created, 'Accepted', job.replay_of ? `replay of ${job.replay_of}` : ''),
  ];
  let at = created;
  for (const entry of job.history) {
    steps.push(...waits(job, at, instant(entry.started_at) ?? at, entry.attempt === 1));
    steps.push(attempt(entry));
    at = instant(entry.ended_at) ?? at;
    const decided = decision(entry);
    if (decided) steps.push(event(at, decided));
    const retry = instant(entry.retry_at);
    if (retry !== null && retry > at) {
      const end = Math.min(retry, nextStart(job, entry) ?? now);
      if (end > at)
        steps.push({ kind: 'backoff', from: at, to: end, label: 'Waited for the retry' });
      at = Math.max(at, end);
    }
  }
  steps.push(...present(job, at, now, why));
  return steps;
}

function event(at: number, label: string, detail = ''): Step {
  return detail
    ? { kind: 'event', from: at, to: at, label, detail }
    : { kind: 'event', from: at, to: at, label };
}

/** The start of the attempt that follows an entry. */
function nextStart(job: Job, entry: Entry): number | null {
  const next = job.history.find((one) => one.attempt > entry.attempt);
  return instant(next?.started_at ?? (job.running ? job.started_at : null));
}

/** The waits before a start: for the due time first, then for admission. */
function waits(job: Job, from: number, start: number, first: boolean): Step[] {
  const due = first ? Math.min(Math.max(instant(job.due_at) ?? from, from), start) : from;
  const steps: Step[] = [];
  if (due > from) steps.push({ kind: 'backoff', from, to: due, label: 'Scheduled for later' });
  if (start > due)
    steps.push({ kind: 'wait', from: due, to: start, label: 'Ready, waited to start' });
  return steps;
}

function attempt(entry: Entry): Step {
  const from = instant(entry.started_at) ?? 0;
  const good = entry.outcome === 'succeeded';
  const handedBack = entry.outcome === 'released' || entry.outcome === 'snoozed';
  const detail = [entry.worker && `at ${entry.worker}`, entry.message].filter(Boolean).join(': ');
  return {
    kind: good ? 'succeeded' : handedBack ? 'ended' : 'failed',
    from,
    to: instant(entry.ended_at) ?? from,
    label: `Attempt ${entry.attempt} ${entry.outcome}`,
    attempt: entry.attempt,
    ...(detail ? { detail } : {}),
    ...(entry.error ? { error: entry.error } : {}),
  };
}

function decision(entry: Entry): string | null {
  if (entry.outcome === 'released') return 'Handed back by its worker';
  if (entry.outcome === 'snoozed') return 'Snoozed by its worker';
  if (entry.outcome !== 'failed') return null;
  return entry.retry_at ? 'Retry decided' : 'No further attempt';
}

/** The running attempt, the present wait, or the end. */
function present(job: Job, at: number, now: number, why: Explanation | null): Step[] {
  if (job.running && job.started_at) {
    const start = instant(job.started_at) ?? now;
    const steps = waits(job, at, start, job.history.length === 0);
    const { progress, worker } = job.running;
    const parts = [worker && `at ${worker}`, progress && `${progress.percent} %`, progress?.note];
    const run: Step = {
      kind: 'run',
      from: start,
      to: now,
      label: `Attempt ${job.attempt} runs`,
      open: true,
    };
    return [...steps, { ...run, attempt: job.attempt, detail: parts.filter(Boolean).join(', ') }];
  }
  const ended = instant(job.ended_at);
  if (ended !== null) {
    const rest: Step[] =
      job.history.length === 0 && ended > at
        ? [{ kind: 'wait', from: at, to: ended, label: 'Waited, never started' }]
        : [];
    const end = event(ended, `Ended ${job.state}`);
    const replay = job.replayed_by ? [event(ended, 'Replayed', `by ${job.replayed_by}`)] : [];
    return [...rest, { ...end, kind: 'ended' }, ...replay];
  }
  const due = instant(job.run_at) ?? now;
  const held = why?.held_by ? `Held by ${holder(why.held_by)}` : 'Waits';
  const detail = why?.reason ? { detail: why.reason } : {};
  const first: Step[] =
    due > at && now > due && job.history.length === 0
      ? [{ kind: 'backoff', from: at, to: due, label: 'Scheduled for later' }]
      : [];
  const from = first.length ? due : at;
  return [
    ...first,
    {
      kind: due > now ? 'backoff' : 'wait',
      from,
      to: Math.max(now, from),
      label: held,
      open: true,
      ...detail,
    },
  ];
}

/** Where a step lies between the first and the last, as shares of the whole. */
export function extent(steps: Step[], step: Step): { left: number; width: number } {
  const first = Math.min(...steps.map((one) => one.from));
  const last = Math.max(...steps.map((one) => one.to));
  const whole = Math.max(1, last - first);
  return { left: (step.from - first) / whole, width: (step.to - step.from) / whole };
}
