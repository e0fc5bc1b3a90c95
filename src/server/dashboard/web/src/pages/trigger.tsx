// One trigger: its form, its latest events, a test, and its dead letters.

import { useRef, useState } from 'preact/hooks';
import { path, send } from '../api/client';
import { may } from '../api/session';
import type { HandledEvent, Trigger, TriggerStatus } from '../api/types';
import { count, instant, rate } from '../lib/format';
import { href } from '../lib/route';
import { now, useLoad } from '../state/live';
import { go } from '../state/router';
import { TriggerForm } from '../trigger/form';
import { DeadLetters } from '../trigger/letters';
import { TestEvent } from '../trigger/test-event';
import { Badge, Button, Empty, Facts, Failed, Loading, Section, Time } from '../ui/basics';
import { JsonValue } from '../ui/code';
import { Confirm } from '../ui/dialog';
import { Table } from '../ui/table';
import { doesText, whichText } from './triggers';

/** How many of the latest events are shown at first, and how many the server keeps at most. */
const EVENTS = 20;
const MAX_EVENTS = 200;

/** The page. */
export function TriggerPage({ name }: { name: string }) {
  const at = path`v1/triggers/${name}`;
  // Reading all of them each time would cost, so only a user who wants them gets them.
  const events = useRef(EVENTS);
  const load = (signal: AbortSignal) =>
    send<Trigger>('GET', at, { signal, query: { events: events.current } });
  const { data: answer, error, reload } = useLoad(at, load);
  const more = async () => {
    events.current = MAX_EVENTS;
    await reload();
  };
  const [open, setOpen] = useState<'edit' | 'delete' | ''>('');
  const data = answer?.value;
  if (!data) {
    return (
      <>
        <h1>
          <bdi>{name}</bdi>
        </h1>
        <Failed error={error} what="this trigger" />
        {error ? <a href="#/triggers">All triggers</a> : <Loading />}
      </>
    );
  }
  const { name: _, version, status, ...config } = data;
  return (
    <>
      <div class="title">
        <h1>
          <bdi>{name}</bdi>
        </h1>
        {may('admin') && (
          <div class="bar">
            <button type="button" onClick={() => setOpen('edit')}>
              Edit …
            </button>
            <button type="button" class="danger" onClick={() => setOpen('delete')}>
              Delete …
            </button>
          </div>
        )}
      </div>
      <Failed error={error} what="this trigger" />
      <div class="columns">
        <Section title="Trigger">
          <Facts
            rows={[
              ['handles', <code class="preview">{whichText(data)}</code>],
              ['does', doesText(data)],
              ['version', String(version)],
            ]}
          />
          <JsonValue value={config} label="trigger" />
        </Section>
        <Section title="Activity">
          {status ? (
            <Activity status={status} more={events.current < MAX_EVENTS ? more : null} />
          ) : (
            <Empty>This server does not count events of triggers.</Empty>
          )}
        </Section>
      </div>
      {(may('admin') || may('read')) && (
        <Section title="Test an event">
          <TestEvent trigger={name} />
        </Section>
      )}
      <Section title="Dead letters">
        <DeadLetters trigger={name} />
      </Section>
      {open === 'edit' && (
        <TriggerForm
          name={name}
          config={config}
          etag={answer?.etag ?? null}
          onClose={() => setOpen('')}
          onDone={() => void reload()}
        />
      )}
      {open === 'delete' && (
        <Confirm
          title={`Delete ${name}?`}
          verb="Delete the trigger"
          danger
          onClose={() => setOpen('')}
          work={async () => {
            await send('DELETE', at, { etag: answer?.etag ?? null });
            go('#/triggers');
          }}
        >
          <p>Events that it would handle are no longer handled. Its jobs and dead letters stay.</p>
        </Confirm>
      )}
    </>
  );
}

function Activity({ status, more }: { status: TriggerStatus; more: (() => Promise<void>) | null }) {
  const seconds = Math.max(1, (now.value - (instant(status.since) ?? now.value)) / 1000);
  return (
    <>
      <Facts
        rows={[
          ['events that matched', `${count(status.matched)} (${rate(status.matched / seconds)})`],
          ['jobs enqueued', count(status.enqueued)],
          ['dead letters', count(status.dead_letters)],
          ['latest event', status.last_at && <Time at={status.last_at} />],
          ['counted since', <Time at={status.since} />],
        ]}
      />
      {status.recent.length === 0 ? (
        <Empty>No event has matched yet.</Empty>
      ) : (
        <Table
          caption="Latest events"
          rows={status.recent}
          id={(row) => `${row.at} ${row.event.source} ${row.event.id}`}
          columns={[
            { id: 'at', label: 'When', cell: (row) => <Time at={row.at} /> },
            {
              id: 'event',
              label: 'Event',
              cell: (row) => <bdi>{`${row.event.type} ${row.event.id}`}</bdi>,
            },
            { id: 'action', label: 'Became', cell: (row) => <Action row={row} /> },
          ]}
        />
      )}
      {more && status.recent.length === EVENTS && status.matched > EVENTS && (
        <Button kind="small" onClick={more}>
          More events
        </Button>
      )}
    </>
  );
}

function Action({ row }: { row: HandledEvent }) {
  const bad = row.action === 'dead_lettered' || row.action === 'dropped';
  return (
    <>
      <Badge word={row.action} tone={bad ? 'failed' : 'succeeded'} />{' '}
      {'job' in row && (
        <a class="short" title={row.job} href={href(['jobs'], { id: row.job })}>
          {row.job}
        </a>
      )}
      {'reason' in row && <bdi>{row.reason}</bdi>}
    </>
  );
}
