// The first page: every queue with its counts, delays, rates and what holds its jobs.

import { useState } from 'preact/hooks';
import { all, get, optional, path } from '../api/client';
import { isAdmin, may, session } from '../api/session';
import type { History, OverviewPage as Page, Queue, QueueOverview } from '../api/types';
import { instant } from '../lib/format';
import { rowOf } from '../lib/overview';
import { COLUMNS } from '../overview/columns';
import { Findings, Head } from '../overview/head';
import { now, useLoad } from '../state/live';
import { Empty, Failed, Loading, Time } from '../ui/basics';
import { Embedded } from '../ui/embed';
import { Table } from '../ui/table';

/** The server counts every two seconds. */
const GAP_MS = 2000;
/** Counts of this age are called old. */
const STALE_MS = 20_000;
/** Histories that are read one by one at a server without the route of the overview. */
const HISTORIES = 24;

async function readOverview(signal: AbortSignal): Promise<QueueOverview[]> {
  const rows: QueueOverview[] = [];
  let cursor = '';
  do {
    const page = await optional(get<Page>('v1/overview', { limit: 1000, cursor }, signal));
    if (!page) return byQueues(signal);
    rows.push(...page.queues);
    cursor = page.next_cursor ?? '';
  } while (cursor);
  return rows;
}

async function byQueues(signal: AbortSignal): Promise<QueueOverview[]> {
  const queues = await all<Queue>('v1/queues', 'queues');
  const histories = queues
    .slice(0, HISTORIES)
    .map((queue) => optional(get<History>(path`v1/queues/${queue.name}/history`, {}, signal)));
  const read = await Promise.all(histories);
  return queues.map((queue, at) => rowOf(queue, read[at] ?? null));
}

/** The page. */
export function OverviewPage() {
  const [wanted, setWanted] = useState('');
  const load = useLoad('overview', readOverview, {
    on: (change) => change.kind === 'job' || change.kind === 'queue',
    gap: GAP_MS,
  });
  const rows = load.data ?? [];
  const shown = rows.filter((row) => row.name.toLowerCase().includes(wanted.toLowerCase()));
  const counted = rows
    .map((row) => row.counted_at)
    .filter((at) => typeof at === 'string')
    .sort()[0];
  const stale = counted && now.value - (instant(counted) ?? 0) > STALE_MS;
  return (
    <>
      <div class="title">
        <h1>Overview</h1>
        {rows.length > 8 && (
          <input
            type="search"
            aria-label="Queues whose name contains"
            placeholder="Filter queues"
            value={wanted}
            onInput={(event) => setWanted(event.currentTarget.value)}
          />
        )}
      </div>
      {isAdmin.value && <Findings />}
      <Failed error={load.error} what="queues" />
      {!load.data && !load.error && <Loading />}
      {load.data && <Head rows={rows} />}
      {load.data && !rows.some((row) => Object.keys(row.phases).length) && <Start />}
      {stale && (
        <p class="soft">
          The counts are of <Time at={counted} only="relative" />.
        </p>
      )}
      {rows.length > 0 && (
        <Table
          caption="Queues"
          dense
          columns={COLUMNS}
          rows={shown}
          id={(row) => row.name}
          rowClass={(row) => (row.paused ? 'paused' : '')}
        />
      )}
      {rows.length > 0 && !shown.length && <Empty>No queue has this in its name.</Empty>}
      <Embedded address={session.value?.console?.embed} />
    </>
  );
}

function Start() {
  return (
    <Empty>
      No job has come yet. {may('enqueue') ? 'Press Enqueue on the page Jobs, or run ' : 'Run '}
      <code>{`tidegate enqueue --type mail --data '{}'`}</code>.
    </Empty>
  );
}
