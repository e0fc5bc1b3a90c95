// The columns of lists of jobs.

import type { Job } from '../api/types';
import { instant, NONE, span } from '../lib/format';
import { href, jobHref, queueHref } from '../lib/route';
import { now } from '../state/live';
import { Badge, Time } from '../ui/basics';
import type { Column } from '../ui/table';

/** The phases before the end of a job. */
const LIVE: ReadonlySet<string> = new Set(['scheduled', 'ready', 'retrying', 'running']);
/** Longest shown part of a message or value. */
const SHOWN = 120;

/** A text of bounded length. */
export function cut(text: string, most = SHOWN): string {
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** How long the latest attempt took, or runs, in seconds; null if there is none. */
export function duration(job: Job, at: number): number | null {
  const started = instant(job.started_at);
  if (job.state === 'running' && started !== null) return Math.max(0, (at - started) / 1000);
  const last = job.history[job.history.length - 1];
  return last ? last.duration_ms / 1000 : null;
}

/** How long the job waited for its latest start, in seconds; null if it never started. */
function waited(job: Job): number | null {
  const last = job.running ?? job.history[job.history.length - 1];
  return typeof last?.waited_ms === 'number' ? last.waited_ms / 1000 : null;
}

function Attributes({ job }: { job: Job }) {
  const entries = Object.entries(job.attributes);
  if (!entries.length) return <span class="soft">{NONE}</span>;
  return (
    <span class="attributes">
      {entries.map(([name, value]) => (
        <a
          key={name}
          class="tag"
          title={`${name}=${value}`}
          href={href(['jobs'], { [`attribute[${name}]`]: String(value) })}
        >
          <bdi>{cut(`${name}=${value}`, 40)}</bdi>
        </a>
      ))}
    </span>
  );
}

function ErrorText({ job }: { job: Job }) {
  if (!job.error) return <span class="soft">{NONE}</span>;
  const text = job.error.message ?? '';
  return (
    <span class="error-text" title={text}>
      {job.error.reason !== 'failed' && <b>{job.error.reason.replace(/_/g, ' ')} </b>}
      <bdi>{cut(text)}</bdi>
    </span>
  );
}

function Phase({ job }: { job: Job }) {
  const percent = job.running?.progress?.percent;
  return (
    <>
      <Badge word={job.phase} />
      {job.replayed_by && <span class="soft"> replayed</span>}
      {typeof percent === 'number' && <span class="soft"> {Math.round(percent)} %</span>}
    </>
  );
}

/** The id, which every list has. */
export const ID: Column<Job> = {
  id: 'id',
  label: 'Job',
  cell: (job) => (
    <a class="id" href={jobHref(job.type, job.id)} title={job.id}>
      {job.id}
    </a>
  ),
  sort: (job) => job.id,
};

/** The columns that the user can choose. */
export const COLUMNS: readonly Column<Job>[] = [
  {
    id: 'type',
    label: 'Type',
    cell: (job) => <a href={href(['jobs'], { type: job.type })}>{job.type}</a>,
    sort: (job) => job.type,
  },
  {
    id: 'queue',
    label: 'Queue',
    cell: (job) => <a href={queueHref(job.queue)}>{job.queue}</a>,
    sort: (job) => job.queue,
  },
  { id: 'phase', label: 'Phase', cell: (job) => <Phase job={job} />, sort: (job) => job.phase },
  {
    id: 'attempt',
    label: 'Attempt',
    cell: (job) => `${job.attempt} of ${job.max_attempts}`,
    sort: (job) => job.attempt,
    field: 'attempt',
    number: true,
  },
  {
    id: 'error',
    label: 'Latest error',
    cell: (job) => <ErrorText job={job} />,
    sort: (job) => job.error?.message,
  },
  {
    id: 'duration',
    label: 'Took',
    cell: (job) => span(duration(job, now.value)),
    sort: (job) => duration(job, now.value),
    field: 'duration',
    number: true,
    title: 'How long the latest attempt took, or runs',
  },
  {
    id: 'waited',
    label: 'Waited',
    cell: (job) => span(waited(job)),
    sort: waited,
    field: 'wait',
    number: true,
    title: 'How long the job was due before its latest attempt started',
  },
  { id: 'attributes', label: 'Attributes', cell: (job) => <Attributes job={job} /> },
  {
    id: 'worker',
    label: 'Worker',
    cell: (job) => job.running?.worker ?? job.history[job.history.length - 1]?.worker ?? NONE,
    sort: (job) => job.running?.worker ?? job.history[job.history.length - 1]?.worker,
  },
  {
    id: 'priority',
    label: 'Priority',
    cell: (job) => job.priority,
    sort: (job) => job.priority,
    field: 'priority',
    number: true,
  },
  {
    id: 'data',
    label: 'Data',
    cell: (job) => <code class="preview">{cut(JSON.stringify(job.data ?? null), 80)}</code>,
  },
  {
    id: 'created',
    label: 'Created',
    cell: (job) => <Time at={job.created_at} />,
    sort: (job) => instant(job.created_at),
    field: 'created_at',
  },
  {
    id: 'started',
    label: 'Started',
    cell: (job) => (job.started_at ? <Time at={job.started_at} /> : NONE),
    sort: (job) => instant(job.started_at),
    field: 'started_at',
    title: 'When the latest attempt started',
  },
  {
    id: 'when',
    label: 'Due or ended',
    cell: (job) => <Time at={job.ended_at ?? job.run_at} />,
    sort: (job) => instant(job.ended_at ?? job.run_at),
  },
];

/** What the column of due times and ends is about, in a list of this phase; nothing if of both. */
function whenField(phase: string): string | undefined {
  if (LIVE.has(phase)) return 'run_at';
  return phase ? 'ended_at' : undefined;
}

/** The columns with the given ids, after the id of the job, in a list of the jobs of a phase. */
export function columnsOf(ids: readonly string[], phase = ''): Column<Job>[] {
  const field = whenField(phase);
  const chosen = COLUMNS.filter((column) => ids.includes(column.id));
  return [ID, ...chosen.map((of) => (of.id === 'when' && field ? { ...of, field } : of))];
}
