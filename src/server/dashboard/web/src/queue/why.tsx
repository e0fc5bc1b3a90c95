// "Why is it idle or slow?": what holds the due jobs of a queue, its limits, and its workers.

import type { ConstraintUse, QueueExplanation } from '../api/types';
import { count, holder, plural } from '../lib/format';
import { href } from '../lib/route';
import { Badge, Time } from '../ui/basics';
import { type Column, Table } from '../ui/table';

type Held = QueueExplanation['held'][number];
type OfType = QueueExplanation['workers'][number];

/** The answer, with what holds the jobs in order. */
export function Why({ why }: { why: QueueExplanation }) {
  return (
    <>
      <p class="answer">
        <strong>{why.reason}</strong>
      </p>
      <p class="soft">
        {plural(why.examined, 'due job')} examined{why.more ? ', the first of more' : ''}.
        {why.next_due_at && (
          <>
            {' '}
            The next one is due <Time at={why.next_due_at} />.
          </>
        )}
      </p>
      {why.held.length > 0 && (
        <ul class="held">
          {why.held.map((held) => (
            <HeldRow key={holder(held)} held={held} whole={why.examined} />
          ))}
        </ul>
      )}
      <Uses uses={why.constraints} />
    </>
  );
}

function HeldRow({ held, whole }: { held: Held; whole: number }) {
  return (
    <li>
      <div class="row">
        <strong>{holder(held)}</strong>
        <span>{plural(held.jobs, 'job')}</span>
        <meter
          min={0}
          max={Math.max(1, whole)}
          value={held.jobs}
          aria-label={`${holder(held)}: share of the due jobs`}
        />
      </div>
      <div>
        <bdi>{held.reason}</bdi>
      </div>
      <div class="soft">
        {held.since && (
          <>
            since <Time at={held.since} />{' '}
          </>
        )}
        {held.earliest_at && (
          <>
            · earliest start <Time at={held.earliest_at} />{' '}
          </>
        )}
        ·{' '}
        {Object.entries(held.types)
          .map(([type, jobs]) => `${type}: ${count(jobs)}`)
          .join(', ')}
      </div>
    </li>
  );
}

/** What of each constraint is used, by value. */
export function Uses({ uses }: { uses: ConstraintUse[] }) {
  if (!uses.length) return null;
  return (
    <fieldset class="uses">
      <legend>Constraints</legend>
      {uses.map((use) => {
        const name = use.per ? `${use.name}: ${use.per}=${use.value}` : use.name;
        const full = use.running_weight >= use.limit;
        return (
          <div key={name} class={full ? 'use full' : 'use'}>
            <span>
              {use.per && use.value !== undefined && use.value !== null ? (
                <a
                  href={href(['jobs'], { [`attribute[${use.per}]`]: use.value, phase: 'running' })}
                >
                  <bdi>{name}</bdi>
                </a>
              ) : (
                name
              )}
            </span>
            <meter
              min={0}
              max={Math.max(use.limit, use.running_weight, 1)}
              value={use.running_weight}
              aria-label={name}
            />
            <span class="num">
              {count(use.running_weight)} of {count(use.limit)}
            </span>
          </div>
        );
      })}
    </fieldset>
  );
}

const unknown = (value: number | null | undefined): string =>
  typeof value === 'number' ? count(value) : '–';

const WORKERS: Column<OfType>[] = [
  {
    id: 'type',
    label: 'Type',
    cell: (row) => <a href={href(['types', row.type])}>{row.type}</a>,
    sort: (row) => row.type,
  },
  {
    id: 'use',
    label: 'Slots in use',
    cell: (row) => `${count(row.workers.in_use)} of ${unknown(row.workers.capacity)}`,
    sort: (row) => row.workers.in_use,
    number: true,
  },
  {
    id: 'known',
    label: 'Workers',
    cell: (row) => unknown(row.workers.known),
    sort: (row) => row.workers.known,
    number: true,
  },
  {
    id: 'polling',
    label: 'Waiting for jobs',
    cell: (row) => unknown(row.workers.polling),
    sort: (row) => row.workers.polling,
    number: true,
  },
  {
    id: 'busy',
    label: 'Busy',
    cell: (row) => unknown(row.workers.busy),
    sort: (row) => row.workers.busy,
    number: true,
  },
  {
    id: 'draining',
    label: 'Draining',
    cell: (row) => unknown(row.workers.draining),
    sort: (row) => row.workers.draining,
    number: true,
  },
  {
    id: 'seen',
    label: 'Last heard',
    cell: (row) => <Time at={row.workers.last_seen_at} only="relative" />,
  },
];

/** The workers of each type of a queue. */
export function TypeWorkers({ rows }: { rows: OfType[] }) {
  return <Table caption="Workers by type" columns={WORKERS} rows={rows} id={(row) => row.type} />;
}

/** What the running jobs of each type take. */
export function RunningTypes({ why }: { why: QueueExplanation }) {
  if (!why.running.length) return null;
  return (
    <p>
      {why.running.map((use) => (
        <span key={use.type} class="tag">
          {use.type}: {plural(use.jobs, 'job')}, weight {count(use.weight)}
          {typeof use.limit === 'number' && ` of ${count(use.limit)}`}
          {typeof use.limit === 'number' && use.weight >= use.limit && (
            <Badge word="full" tone="paused" />
          )}
        </span>
      ))}
    </p>
  );
}
