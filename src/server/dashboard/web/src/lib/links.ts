// Where a job came from, and where its trace is.

import type { Job } from '../api/types';
import { encode, href } from './route';

/** A link to what made a job, its text, and what follows the link. */
export interface OriginLink {
  label: 'schedule' | 'trigger';
  name: string;
  href: string;
  /** The occurrence of a schedule; null if a request ran it, and of a trigger. */
  at: string | null;
  /** The event of a trigger: its id and source; null of a schedule, and if both are too long. */
  event: string | null;
}

/** What made a job; null if a caller enqueued it. */
export function origin(job: Job): OriginLink | null {
  const { schedule, occurrence, trigger, event, source } = job.origin ?? {};
  if (schedule) {
    return {
      label: 'schedule',
      name: schedule,
      href: href(['schedules', schedule]),
      at: occurrence ?? null,
      event: null,
    };
  }
  if (!trigger) return null;
  const words = [event, source && `of ${source}`].filter(Boolean).join(' ');
  return {
    label: 'trigger',
    name: trigger,
    href: href(['triggers', trigger]),
    at: null,
    event: words || null,
  };
}

/** The address of a job's trace by the server's pattern; null without a pattern or a trace. */
export function traceUrl(pattern: string | null | undefined, job: Job): string | null {
  const trace = /^[0-9a-f]{2}-([0-9a-f]{32})-/.exec(job.headers?.traceparent ?? '')?.[1];
  if (!pattern || !trace) return null;
  const url = pattern
    .replaceAll('{trace_id}', trace)
    .replaceAll('{job_id}', encode(job.id))
    .replaceAll('{type}', encode(job.type));
  return /^https?:\/\//.test(url) ? url : null;
}
