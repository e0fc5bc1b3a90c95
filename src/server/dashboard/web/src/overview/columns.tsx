// The columns of the overview.

import type { ComponentChildren } from 'preact';
import type { QueueOverview } from '../api/types';
import { brief, compact, count, holder, instant, percent, plural, rates } from '../lib/format';
import { failureShare, isExplained, MINUTES, minuteIndex } from '../lib/overview';
import { href, queueHref } from '../lib/route';
import { nowMinute } from '../state/live';
import { Age, Badge } from '../ui/basics';
import { Sparkline, type Spot } from '../ui/sparkline';
import type { Column } from '../ui/table';

/** A count that leads to its jobs. */
function Jobs({ row, phase }: { row: QueueOverview; phase: string }) {
  const jobs = row.phases[phase] ?? 0;
  if (!jobs) return <span class="soft">0</span>;
  const more = row.depth_at_least ? '+' : '';
  return (
    <a href={href(['jobs'], { queue: row.name, phase })} title={`${count(jobs)}${more}`}>
      {compact(jobs)}
      {more}
    </a>
  );
}

/** What the server has not determined: it explains some queues with each answer. */
function Unknown() {
  return (
    <span class="soft" title="The server has not determined it yet">
      unknown
    </span>
  );
}

function Held({ row }: { row: QueueOverview }) {
  if (row.paused) return <Badge word="paused" />;
  if (!isExplained(row)) return <Unknown />;
  const first = row.held[0];
  if (!first) return <span class="soft">–</span>;
  return (
    <a
      class="holder"
      href={`${queueHref(row.name)}?part=why`}
      title={row.held.map((one) => one.reason).join('; ')}
    >
      <span>{holder(first)}</span>{' '}
      <span>
        {compact(first.jobs)} {first.jobs === 1 ? 'job' : 'jobs'}
        {row.held.length > 1 && ` +${row.held.length - 1}`}
      </span>
    </a>
  );
}

function Hour({ row }: { row: QueueOverview }) {
  const spots = (of: (minute: NonNullable<QueueOverview['minutes']>[number]) => number): Spot[] =>
    (row.minutes ?? []).flatMap((minute): Spot[] => {
      const x = minuteIndex(minute.at, nowMinute.value);
      return x === null ? [] : [[x, of(minute)]];
    });
  if (!row.minutes?.length) return null;
  const done = spots((minute) => minute.finished);
  const sum = done.reduce((all, [, y]) => all + y, 0);
  return (
    <Sparkline
      label={`Last hour of ${row.name}: ${count(sum)} jobs ended`}
      steps={MINUTES}
      done={done}
      failed={spots((minute) => minute.failed)}
      waiting={spots((minute) => minute.ready)}
    />
  );
}

const phaseColumn = (id: string, label: string): Column<QueueOverview> => ({
  id,
  label,
  cell: (row) => <Jobs row={row} phase={id} />,
  sort: (row) => row.phases[id] ?? 0,
  number: true,
});

/** Two lines of a cell, the second of less weight. */
function Lines({ first, second }: { first: ComponentChildren; second: ComponentChildren }) {
  return (
    <span class="lines">
      <span>{first}</span>
      {second && <span class="soft">{second}</span>}
    </span>
  );
}

/** The columns, what needs attention first. All of them fit a window of 1024 pixels. */
export const COLUMNS: Column<QueueOverview>[] = [
  {
    id: 'name',
    label: 'Queue',
    cell: (row) => (
      <a class="id wraps" href={queueHref(row.name)}>
        {row.name}
      </a>
    ),
    sort: (row) => row.name,
  },
  phaseColumn('ready', 'Ready'),
  {
    id: 'running',
    label: 'Running',
    cell: (row) => (
      <Lines
        first={<Jobs row={row} phase="running" />}
        second={
          typeof row.concurrency === 'number' &&
          `${row.running_weight === (row.phases.running ?? 0) ? 'of ' : `${compact(row.running_weight)}/`}${compact(row.concurrency)}`
        }
      />
    ),
    sort: (row) => row.phases.running ?? 0,
    number: true,
    title: 'Running jobs, and their weight of the limit',
  },
  phaseColumn('retrying', 'Retrying'),
  phaseColumn('scheduled', 'Later'),
  {
    id: 'failed',
    label: 'Failed',
    cell: (row) => (
      <Lines
        first={<Jobs row={row} phase="failed" />}
        second={failureShare(row) !== null && percent(failureShare(row))}
      />
    ),
    sort: (row) => row.phases.failed ?? 0,
    number: true,
    title: 'Failed jobs, and the share of those that ended in the last five minutes',
  },
  { id: 'held', label: 'Held by', cell: (row) => <Held row={row} /> },
  {
    id: 'oldest',
    label: 'Due for',
    cell: (row) => <Age at={row.oldest_due_at} />,
    sort: (row) => (row.oldest_due_at ? -(instant(row.oldest_due_at) ?? 0) : null),
    number: true,
    title: 'The due job that has waited longest',
  },
  {
    id: 'delay',
    label: 'Start delay',
    cell: (row) =>
      row.start_delay_seconds ? (
        <Lines
          first={`p50 ${brief(row.start_delay_seconds.p50)}`}
          second={`p99 ${brief(row.start_delay_seconds.p99)}`}
        />
      ) : (
        '–'
      ),
    sort: (row) => row.start_delay_seconds?.p99,
    number: true,
    title: 'From due to start: half of the jobs at most, 99 % at most',
  },
  {
    id: 'workers',
    label: 'Workers',
    cell: (row) =>
      isExplained(row) ? (
        <span
          title={`${plural(row.desired_workers, 'worker')} would drain the ready jobs in a minute`}
        >
          <Lines first={compact(row.workers)} second={`of ${compact(row.desired_workers)}`} />
        </span>
      ) : (
        <Lines first={compact(row.workers)} second={<Unknown />} />
      ),
    sort: (row) => row.workers,
    number: true,
  },
  {
    id: 'empty',
    label: 'Empty in',
    cell: (row) => brief(row.time_to_empty_seconds),
    sort: (row) => row.time_to_empty_seconds,
    number: true,
    title: 'In how long no job is due or runs, at the rates of the last five minutes',
  },
  {
    id: 'rates',
    label: 'In · out',
    cell: (row) => (
      <span class="lines">
        <Hour row={row} />
        <span>{rates(row.throughput.enqueued_per_second, row.throughput.finished_per_second)}</span>
      </span>
    ),
    sort: (row) => row.throughput.finished_per_second,
    number: true,
    title: 'The last hour: jobs that ended (bars), failed (red bars) and waited (line)',
  },
];
