// Where a job came from, and where its trace is.

import type { Job } from '../api/types';
import { encode } from './route';

/** The schedule or the event that made a job. */
export interface Origin {
  schedule?: string;
  event?: boolean;
}

/** The job of an occurrence or of a run by hand: the name of its schedule, and the instant or a hash. */
const OCCURRENCE = /^([\w.-]+):(?:\d{4}-?\d\d-?\d\dT[\d:.]+Z|run\.[0-9a-f]+)$/;

/** What made a job, by its id; null if a producer did. */
export function origin(job: Job): Origin | null {
  const id = job.replay_of ?? job.id;
  const name = OCCURRENCE.exec(id)?.[1];
  // Of a name of over 40 characters the id has only the beginning and a digest.
  if (name && !/^.{27}\.[0-9a-f]{12}$/.test(name)) return { schedule: name };
  return /^ev-[0-9a-f]{40}$/.test(id) ? { event: true } : null;
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
