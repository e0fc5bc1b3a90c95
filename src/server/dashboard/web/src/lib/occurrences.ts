// The previous occurrences of a schedule, and their picture.

import type { Job, Schedule } from '../api/types';
import { instant, plural, span } from './format';

/** A past occurrence, with the job that it made if that is kept. */
export interface Past {
  at: string;
  id: string;
  job: Job | null;
}

/** The occurrences that a schedule names: the instant of each, and the id of its job; latest first. */
export function occurrencesOf(schedule: Schedule): { at: string; job: string }[] {
  if (schedule.previous?.length) return schedule.previous;
  return schedule.last_job && schedule.last_occurrence
    ? [{ at: schedule.last_occurrence, job: schedule.last_job }]
    : [];
}

/** The occurrences with those of `jobs` that they made. */
export function pastOf(schedule: Schedule, jobs: ReadonlyMap<string, Job>): Past[] {
  return occurrencesOf(schedule).map(({ at, job }) => ({
    at,
    id: job,
    job: jobs.get(job) ?? null,
  }));
}

/** One bar of a picture. */
export interface Bar {
  /** `none`: its job has not begun, or is no longer kept. */
  kind: 'succeeded' | 'failed' | 'running' | 'none';
  /** Seconds: how long all attempts took. */
  took: number | null;
  /** Seconds: how long the first attempt waited after the due time. */
  delay: number | null;
}

const BAD = ['failed', 'expired', 'cancelled', 'dropped'];

/** The bars of a picture, oldest first. */
export function barsOf(past: readonly Past[], now: number): Bar[] {
  return past.map(({ job }) => barOf(job, now)).reverse();
}

function barOf(job: Job | null, now: number): Bar {
  if (!job) return { kind: 'none', took: null, delay: null };
  const begun = instant(job.started_at);
  const running = job.phase === 'running' && begun !== null ? Math.max(0, now - begun) : 0;
  const ended = job.history.reduce((sum, one) => sum + one.duration_ms, 0);
  const first = job.history[0] ?? job.running;
  return {
    kind: kindOf(job.phase),
    took: job.history.length || running ? (ended + running) / 1000 : null,
    delay: typeof first?.waited_ms === 'number' ? first.waited_ms / 1000 : null,
  };
}

function kindOf(phase: string): Bar['kind'] {
  if (phase === 'succeeded') return 'succeeded';
  if (BAD.includes(phase)) return 'failed';
  return phase === 'running' || phase === 'retrying' ? 'running' : 'none';
}

/** A picture in words. */
export function barsText(bars: readonly Bar[]): string {
  const of = (kind: Bar['kind']) => bars.filter((bar) => bar.kind === kind).length;
  const longest = Math.max(...bars.map((bar) => bar.took ?? -1));
  const latest = Math.max(...bars.map((bar) => bar.delay ?? -1));
  const parts = [`${of('succeeded')} succeeded`, `${of('failed')} failed`];
  if (of('running')) parts.push(`${of('running')} under way`);
  if (longest >= 0) parts.push(`at most ${span(longest)} long`);
  if (latest >= 0) parts.push(`at most ${span(latest)} late`);
  return `${plural(bars.length, 'previous occurrence')}: ${parts.join(', ')}`;
}
