// Job types: their queues, limits and targets.

import { all } from '../api/client';
import type { JobType } from '../api/types';
import { count, NONE } from '../lib/format';
import { href, queueHref } from '../lib/route';
import { useLoad } from '../state/live';
import { Empty, Failed, Loading } from '../ui/basics';
import { type Column, Table } from '../ui/table';
import { windowText } from '../ui/windows';

/** Where the jobs of a type go, in a word. */
function targetText(type: JobType): string {
  const target: unknown = type.target;
  if (typeof target !== 'object' || target === null) return 'pull workers';
  if ('url' in target && typeof target.url === 'string') return target.url;
  return Object.keys(target)[0] ?? NONE;
}

const COLUMNS: Column<JobType>[] = [
  {
    id: 'name',
    label: 'Type',
    cell: (row) => (
      <a class="id" href={href(['types', row.name])}>
        {row.name}
      </a>
    ),
    sort: (row) => row.name,
  },
  {
    id: 'queue',
    label: 'Queue',
    cell: (row) => <a href={queueHref(row.queue ?? 'default')}>{row.queue}</a>,
    sort: (row) => row.queue,
  },
  { id: 'target', label: 'Goes to', cell: targetText, sort: targetText },
  {
    id: 'concurrency',
    label: 'Concurrency',
    cell: (row) => count(row.concurrency),
    sort: (row) => row.concurrency,
    number: true,
  },
  {
    id: 'attempts',
    label: 'Attempts',
    cell: (row) => count(row.max_attempts ?? (row.delivery === 'at_most_once' ? 1 : 3)),
    sort: (row) => row.max_attempts,
    number: true,
  },
  {
    id: 'windows',
    label: 'Windows',
    cell: (row) => row.windows?.map(windowText).join('; ') || 'always',
  },
  {
    id: 'jobs',
    label: 'Jobs',
    cell: (row) => (
      <span class="examples">
        <a href={href(['jobs'], { type: row.name })}>all</a>
        <a href={href(['jobs'], { type: row.name, phase: 'failed' })}>failed</a>
      </span>
    ),
  },
];

/** The page. */
export function TypesPage() {
  const load = () => all<JobType>('v1/job-types', 'job_types');
  const { data, error } = useLoad('types', load, {
    on: (change) => change.kind === 'job_type',
    every: 30_000,
  });
  return (
    <>
      <div class="title">
        <h1>Job types</h1>
      </div>
      <Failed error={error} what="job types" />
      {!data && !error && <Loading />}
      {data?.length === 0 && (
        <Empty>
          There are no job types yet. <code>tidegate types put mail</code> makes one.
        </Empty>
      )}
      {data && data.length > 0 && (
        <Table caption="Job types" columns={COLUMNS} rows={data} id={(row) => row.name} />
      )}
    </>
  );
}
