// Plugins: live and shadow versions, users, and the health of their calls.

import { all } from '../api/client';
import type { Plugin } from '../api/types';
import { count, percent, span } from '../lib/format';
import { href, queueHref } from '../lib/route';
import { useLoad } from '../state/live';
import { Badge, Empty, Failed, Loading, Time } from '../ui/basics';
import { type Column, Table } from '../ui/table';

/** What uses a plugin, as links. */
export function Users({ plugin }: { plugin: Plugin }) {
  if (!plugin.used_by.length) return <span class="soft">nothing</span>;
  return (
    <span class="examples">
      {plugin.used_by.map((user) => (
        <a
          key={user.kind + user.name}
          href={user.kind === 'queue' ? queueHref(user.name) : href(['types', user.name])}
        >
          {user.name}
        </a>
      ))}
    </span>
  );
}

const COLUMNS: Column<Plugin>[] = [
  {
    id: 'name',
    label: 'Plugin',
    cell: (row) => (
      <a class="id" href={href(['plugins', row.name])}>
        {row.name}
      </a>
    ),
    sort: (row) => row.name,
  },
  { id: 'roles', label: 'Roles', cell: (row) => row.roles.join(', ') },
  {
    id: 'live',
    label: 'Live',
    cell: (row) => (
      <>
        version {row.live} {!row.runnable && <Badge word="not runnable" tone="failed" />}{' '}
        {row.health.failing && <Badge word="failing" tone="failed" />}
      </>
    ),
    sort: (row) => row.live,
  },
  { id: 'shadow', label: 'Shadow', cell: (row) => (row.shadow ? `version ${row.shadow}` : '–') },
  { id: 'users', label: 'Used by', cell: (row) => <Users plugin={row} /> },
  {
    id: 'calls',
    label: 'Calls',
    cell: (row) => count(row.health.calls),
    sort: (row) => row.health.calls,
    number: true,
  },
  {
    id: 'faults',
    label: 'Faults',
    cell: (row) =>
      `${count(row.health.faults)} (${percent(row.health.calls ? row.health.faults / row.health.calls : 0)})`,
    sort: (row) => row.health.faults,
    number: true,
  },
  {
    id: 'took',
    label: 'Latest call',
    cell: (row) => span(row.health.last_usage?.took_seconds),
    number: true,
  },
  {
    id: 'fault',
    label: 'Latest fault',
    cell: (row) =>
      row.health.last_fault ? (
        <span class="error-text">
          {row.health.last_fault.kind}: <bdi>{row.health.last_fault.message}</bdi>{' '}
          <Time at={row.health.last_fault.at} only="relative" />
        </span>
      ) : (
        '–'
      ),
  },
];

/** The page. */
export function PluginsPage() {
  const { data, error } = useLoad('plugins', () => all<Plugin>('v1/plugins', 'plugins'));
  return (
    <>
      <div class="title">
        <h1>Plugins</h1>
      </div>
      <Failed error={error} what="plugins" />
      {!data && !error && <Loading />}
      {data?.length === 0 && (
        <Empty>
          There are no plugins. <code>tidegate plugin push</code> adds one.
        </Empty>
      )}
      {data && data.length > 0 && (
        <Table caption="Plugins" columns={COLUMNS} rows={data} id={(row) => row.name} />
      )}
    </>
  );
}
