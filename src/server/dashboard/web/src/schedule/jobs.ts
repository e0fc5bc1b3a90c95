// The jobs that schedules have made.

import { get } from '../api/client';
import type { Job, JobPage, Schedule } from '../api/types';
import { occurrencesOf } from '../lib/occurrences';

/** Ids of one request: an address has a bounded length. */
const IDS = 40;

/** The jobs of the previous occurrences of schedules, as far as they are kept, by their ids. */
export async function readJobs(
  schedules: readonly Schedule[],
  signal: AbortSignal,
): Promise<Map<string, Job>> {
  const ids = schedules.flatMap((schedule) => occurrencesOf(schedule).map((one) => one.job));
  const jobs = new Map<string, Job>();
  for (let at = 0; at < ids.length; at += IDS) {
    const id = ids.slice(at, at + IDS).join(',');
    const page = await get<JobPage>('v1/jobs', { id, limit: IDS }, signal);
    for (const job of page.jobs) jobs.set(job.id, job);
  }
  return jobs;
}
