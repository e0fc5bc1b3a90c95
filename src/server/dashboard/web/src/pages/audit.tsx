// Who changed what, and when.

import { useState } from 'preact/hooks';
import { get } from '../api/client';
import type { AuditEntry, AuditPage as Page } from '../api/types';
import { cut } from '../jobs/columns';
import { inline, type Json } from '../lib/diff';
import { instant } from '../lib/format';
import { href, queueHref } from '../lib/route';
import { useLoad } from '../state/live';
import { route } from '../state/router';
import { Badge, Empty, Failed, Loading, Time } from '../ui/basics';
import { JsonValue } from '../ui/code';
import { type Column, Table } from '../ui/table';

const PAGE = 100;

/** Where the subject of a change is shown; null for what has no page. */
export function subject(path: string): { name: string; to: string } | null {
  const match = /^\/v1\/(queues|job-types|schedules|triggers|plugins)\/([^/]+)/.exec(path);
  if (!match) return null;
  const [, kind = '', part = ''] = match;
  let name = part;
  try {
    name = decodeURIComponent(part);
  } catch {
    // The path came from a request; it may be anything.
  }
  if (kind === 'queues') return { name, to: queueHref(name) };
  return { name, to: href([kind === 'job-types' ? 'types' : kind, name]) };
}

function With({ entry }: { entry: AuditEntry }) {
  if (entry.with === undefined || entry.with === null)
    return <span class="soft">{entry.query ?? '–'}</span>;
  const text = inline(entry.with as Json);
  if (text.length < 60) return <code class="preview">{text}</code>;
  return (
    <details>
      <summary>
        <code class="preview">{cut(text, 60)}</code>
      </summary>
      <JsonValue value={entry.with} label="request" />
    </details>
  );
}

const COLUMNS: Column<AuditEntry>[] = [
  { id: 'at', label: 'When', cell: (row) => <Time at={row.at} />, sort: (row) => instant(row.at) },
  { id: 'caller', label: 'Who', cell: (row) => <bdi>{row.caller}</bdi>, sort: (row) => row.caller },
  {
    id: 'action',
    label: 'What',
    cell: (row) => row.action.replace(/_/g, ' '),
    sort: (row) => row.action,
  },
  {
    id: 'path',
    label: 'Of',
    cell: (row) => {
      const found = subject(row.path);
      return found ? <a href={found.to}>{found.name}</a> : <code class="preview">{row.path}</code>;
    },
    sort: (row) => row.path,
  },
  {
    id: 'status',
    label: 'Status',
    cell: (row) => (
      <Badge word={String(row.status)} tone={row.status < 400 ? 'succeeded' : 'failed'} />
    ),
  },
  { id: 'with', label: 'With', cell: (row) => <With entry={row} /> },
  { id: 'request', label: 'Request', cell: (row) => <code class="soft">{row.request_id}</code> },
];

/** The page. */
export function AuditPage() {
  const cursor = route.value?.query.get('cursor') ?? '';
  const { data, error } = useLoad(
    `audit ${cursor}`,
    (signal) => get<Page>('v1/audit', { limit: PAGE, cursor }, signal),
    { every: 10_000 },
  );
  const [wanted, setWanted] = useState('');
  const rows = (data?.entries ?? []).filter((entry) =>
    `${entry.caller} ${entry.action} ${entry.path}`.toLowerCase().includes(wanted.toLowerCase()),
  );
  return (
    <>
      <div class="title">
        <h1>Audit</h1>
        <input
          type="search"
          aria-label="Entries that contain"
          placeholder="Filter this page"
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
      </div>
      <Failed error={error} what="the audit log" />
      {!data && !error && <Loading />}
      {data && rows.length === 0 && (
        <Empty>
          {data.entries.length ? 'No entry of this page matches.' : 'Nothing has been changed yet.'}
        </Empty>
      )}
      {rows.length > 0 && (
        <Table
          caption="Audit log"
          columns={COLUMNS}
          rows={rows}
          id={(row) => `${row.at} ${row.request_id}`}
        />
      )}
      <div class="pages">
        {cursor && <a href="#/audit">First page</a>}
        {data?.next_cursor && <a href={href(['audit'], { cursor: data.next_cursor })}>Next page</a>}
      </div>
    </>
  );
}
