// Triggers with what they did, and the dead letters of all.

import { useState } from 'preact/hooks';
import { all } from '../api/client';
import { may } from '../api/session';
import type { Trigger } from '../api/types';
import { count, instant } from '../lib/format';
import { href } from '../lib/route';
import { useLoad } from '../state/live';
import { TriggerForm } from '../trigger/form';
import { DeadLetters } from '../trigger/letters';
import { Empty, Failed, Loading, Section, Time } from '../ui/basics';
import { type Column, Table } from '../ui/table';

/** What a trigger does, in words. */
export function doesText(trigger: Trigger): string {
  const of = (fields: Record<string, unknown> | null | undefined) =>
    typeof fields?.type === 'string' ? fields.type : 'a type that the event names';
  if (trigger.complete && Object.keys(trigger.complete).length)
    return `completes jobs of ${of(trigger.complete)}`;
  return `enqueues ${of(trigger.enqueue)}`;
}

/** Which events a trigger handles, in words. */
export function whichText(trigger: Trigger): string {
  if (trigger.job_types?.length) return `ends of ${trigger.job_types.join(', ')}`;
  const filter = JSON.stringify(trigger.filter ?? {});
  return filter === '{}' ? 'every event' : filter;
}

const COLUMNS: Column<Trigger>[] = [
  {
    id: 'name',
    label: 'Trigger',
    cell: (row) => (
      <a class="id" href={href(['triggers', row.name])}>
        {row.name}
      </a>
    ),
    sort: (row) => row.name,
  },
  { id: 'which', label: 'Handles', cell: (row) => <code class="preview">{whichText(row)}</code> },
  { id: 'does', label: 'Does', cell: doesText, sort: doesText },
];

const STATUS: Column<Trigger>[] = [
  {
    id: 'matched',
    label: 'Matched',
    cell: (row) => count(row.status?.matched),
    sort: (row) => row.status?.matched,
    number: true,
    title: 'Events that matched. Kept over restarts; dropped 30 days after the latest',
  },
  {
    id: 'enqueued',
    label: 'Enqueued',
    cell: (row) => count(row.status?.enqueued),
    sort: (row) => row.status?.enqueued,
    number: true,
  },
  {
    id: 'dead',
    label: 'Dead letters',
    cell: (row) => count(row.status?.dead_letters),
    sort: (row) => row.status?.dead_letters,
    number: true,
  },
  {
    id: 'last',
    label: 'Latest event',
    cell: (row) => <Time at={row.status?.last_at} />,
    sort: (row) => instant(row.status?.last_at),
  },
];

/** The page. */
export function TriggersPage() {
  const [create, setCreate] = useState(false);
  const { data, error, reload } = useLoad('triggers', () =>
    all<Trigger>('v1/triggers', 'triggers'),
  );
  const columns = data?.some((trigger) => trigger.status) ? [...COLUMNS, ...STATUS] : COLUMNS;
  return (
    <>
      <div class="title">
        <h1>Triggers</h1>
        {may('admin') && (
          <button type="button" onClick={() => setCreate(true)}>
            New trigger …
          </button>
        )}
      </div>
      <Failed error={error} what="triggers" />
      {!data && !error && <Loading />}
      {data?.length === 0 && (
        <Empty>There are no triggers. They turn events of other systems into jobs.</Empty>
      )}
      {data && data.length > 0 && (
        <Table caption="Triggers" columns={columns} rows={data} id={(row) => row.name} />
      )}
      <Section title="Dead letters">
        <DeadLetters />
      </Section>
      {create && <TriggerForm onClose={() => setCreate(false)} onDone={() => void reload()} />}
    </>
  );
}
