// Reading a page of jobs, and the counts of its tabs.

import { all, get, serverNow } from '../api/client';
import type { Job, JobPage, Queue } from '../api/types';
import { narrower, PHASES, parameters } from '../lib/filter';
import { merged } from '../lib/rows';
import { pageSize } from '../state/prefs';

/** Empty pages that one click skips: a page reads a bounded number of jobs, however few match. */
const EMPTY_PAGES = 9;
/** Most jobs that a tab counts one by one. */
const COUNTED = 100;

/** The jobs of a page, and those of `keep` that were shown before and are no longer on it. */
export async function readJobs(
  query: URLSearchParams,
  signal: AbortSignal,
  old: Job[],
  keep: Set<string>,
): Promise<JobPage> {
  const params = parameters(query, serverNow());
  params.set('limit', String(pageSize.peek()));
  for (const name of ['sort', 'cursor']) {
    const value = query.get(name);
    if (value) params.set(name, value);
  }
  let page = await get<JobPage>('v1/jobs', params, signal);
  for (let more = EMPTY_PAGES; more > 0 && !page.jobs.length && page.next_cursor; more--) {
    params.set('cursor', page.next_cursor);
    page = await get<JobPage>('v1/jobs', params, signal);
  }
  const there = new Set(page.jobs.map((job) => job.id));
  const gone = [...keep].filter((id) => !there.has(id) && old.some((job) => job.id === id));
  if (!gone.length) return page;
  const kept = await get<JobPage>('v1/jobs', { id: gone.join(','), limit: gone.length }, signal);
  const fresh = new Map(kept.jobs.map((job) => [job.id, job]));
  const before = old.map((job) => fresh.get(job.id) ?? job);
  return { ...page, jobs: merged(before, page.jobs, (job) => job.id, keep) };
}

/** How many jobs are in a phase; with `more` there are at least that many. */
export interface PhaseCount {
  jobs: number;
  more: boolean;
}

/** The counts of the phases under a filter. */
export type Counts = Record<string, PhaseCount>;

/** The counts of all phases: those of the queues where only a queue is given, else counted up to 100. */
export async function readCounts(
  query: URLSearchParams,
  signal: AbortSignal,
  cheap: boolean,
): Promise<Counts | null> {
  if (!narrower(query, ['queue', 'phase'])) return ofQueues(query.get('queue'));
  if (cheap) return null;
  const counted = PHASES.map(async (phase): Promise<[string, PhaseCount]> => {
    const params = parameters(query, serverNow());
    params.set('phase', phase);
    params.set('limit', String(COUNTED));
    const page = await get<JobPage>('v1/jobs', params, signal);
    return [phase, { jobs: page.jobs.length, more: Boolean(page.next_cursor) }];
  });
  return Object.fromEntries(await Promise.all(counted));
}

async function ofQueues(queue: string | null): Promise<Counts> {
  const queues = (await all<Queue>('v1/queues', 'queues')).filter(
    (one) => !queue || one.name === queue,
  );
  return Object.fromEntries(
    PHASES.map((phase) => {
      const jobs = queues.reduce((sum, { status }) => sum + (status?.phases?.[phase] ?? 0), 0);
      return [phase, { jobs, more: queues.some(({ status }) => status?.depth_at_least) }];
    }),
  );
}
