import { all, get } from '../api/client';
import { serverless } from '../api/session';
import type { Job, JobPage, JobType } from '../api/types';
import { columnsOf } from '../jobs/columns';
import { instant, span } from '../lib/format';
import { href } from '../lib/route';
import { sorted } from '../lib/rows';
import { now, useLoad } from '../state/live';
import { Empty, Failed, Section } from '../ui/basics';
import { type Column, Table } from '../ui/table';

const LISTED = 20;
const SLOW_MS = 10_000;

/** The running jobs, or the ready ones with the longest wait first. */
export function Jobs({
  queue,
  phase,
  title,
  side,
}: {
  queue: string;
  phase: 'running' | 'ready';
  title: string;
  side?: preact.ComponentChild;
}) {
  const most = serverless.value ? 100 : 1000;
  const load = async (signal: AbortSignal): Promise<Job[]> => {
    const page = await get<JobPage>('v1/jobs', { queue, phase, limit: most }, signal);
    return page.jobs;
  };
  const { data } = useLoad(`${phase} ${queue}`, load, {
    on: (change) => change.kind === 'job',
    every: SLOW_MS,
  });
  const since: Column<Job> = {
    id: 'since',
    label: phase === 'ready' ? 'Due for' : 'Runs for',
    cell: (job) =>
      span(
        (now.value - (instant(phase === 'ready' ? job.run_at : job.started_at) ?? now.value)) /
          1000,
      ),
    number: true,
  };
  const jobs = sorted(
    data ?? [],
    (job) => instant(phase === 'ready' ? job.run_at : job.started_at),
    false,
  ).slice(0, LISTED);
  const all = href(['jobs'], { queue, phase });
  return (
    <Section title={title} side={<a href={all}>All {phase} jobs</a>}>
      {side}
      {jobs.length === 0 ? (
        <Empty>None.</Empty>
      ) : (
        <Table
          caption={title}
          columns={[
            ...columnsOf(['type', 'phase', 'attempt', 'attributes', 'worker', 'priority']),
            since,
          ]}
          rows={jobs}
          id={(job) => job.id}
        />
      )}
      {(data?.length ?? 0) >= most && (
        <p class="soft">
          Of {most} {phase} jobs that the server lists first.
        </p>
      )}
    </Section>
  );
}

/** The job types that use a queue. */
export function Types({ queue }: { queue: string }) {
  const load = async () =>
    (await all<JobType>('v1/job-types', 'job_types')).filter((type) => type.queue === queue);
  const { data, error } = useLoad(`types ${queue}`, load, {
    on: (change) => change.kind === 'job_type',
    every: 60_000,
  });
  return (
    <Section title="Job types">
      <Failed error={error} what="job types" />
      {data?.length === 0 && <Empty>No type uses this queue.</Empty>}
      <ul class="plain">
        {data?.map((type) => (
          <li key={type.name}>
            <a href={href(['types', type.name])}>{type.name}</a>{' '}
            <span class="soft">
              {typeof type.concurrency === 'number' && `${type.concurrency} at once, `}
              {type.target ? 'pushed' : 'pulled by workers'}
              {type.windows?.length ? ', with windows' : ''}
            </span>
          </li>
        ))}
      </ul>
    </Section>
  );
}
