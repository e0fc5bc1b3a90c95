// What is known of the calls of a plugin: decisions that differ, faults, log lines.

import type { PluginDifferences, PluginFaults, PluginLogs } from '../api/types';
import { count, full, percent } from '../lib/format';
import { href } from '../lib/route';
import { zone } from '../state/prefs';
import { Badge, Empty, Time } from '../ui/basics';
import { JsonValue } from '../ui/code';
import { Table } from '../ui/table';

/** The decisions of the live version and its shadow. */
export function Differences({ found }: { found: PluginDifferences }) {
  const decision = (one: PluginDifferences['differences'][number]['live']) => (
    <>
      <Badge word={one.action} tone={one.action === 'run' ? 'succeeded' : 'retrying'} />{' '}
      <Time at={one.until} only="absolute" /> <bdi>{one.reason}</bdi>
    </>
  );
  return (
    <>
      <p>
        {count(found.different)} of {count(found.compared)} decisions differ (
        {percent(found.compared ? found.different / found.compared : 0)}); {count(found.failed)}{' '}
        calls failed, {count(found.missed)} were not compared.
      </p>
      {found.differences.length > 0 && (
        <Table
          caption="Differences"
          rows={found.differences}
          id={(row) => `${row.at} ${row.job}`}
          columns={[
            { id: 'at', label: 'When', cell: (row) => <Time at={row.at} /> },
            {
              id: 'job',
              label: 'Job',
              cell: (row) => <a href={href(['jobs'], { id: row.job })}>{row.job}</a>,
            },
            { id: 'live', label: 'Live did', cell: (row) => decision(row.live) },
            { id: 'shadow', label: 'Shadow would', cell: (row) => decision(row.shadow) },
          ]}
        />
      )}
    </>
  );
}

/** The latest failed calls, each with its input. */
export function Faults({ faults }: { faults: PluginFaults['faults'] }) {
  if (!faults.length) return <Empty>No call has failed.</Empty>;
  return (
    <Table
      caption="Faults"
      rows={faults}
      id={(row) => `${row.at} ${row.version} ${row.kind} ${row.message}`}
      columns={[
        { id: 'at', label: 'When', cell: (row) => <Time at={row.at} /> },
        {
          id: 'version',
          label: 'Version',
          cell: (row) => `${row.version}${row.shadow ? ' (shadow)' : ''}`,
          number: true,
        },
        { id: 'kind', label: 'Kind', cell: (row) => <Badge word={row.kind} tone="failed" /> },
        { id: 'message', label: 'Message', cell: (row) => <bdi>{row.message}</bdi> },
        {
          id: 'call',
          label: 'Call',
          unseen: true,
          cell: (row) => (
            <details>
              <summary>The call</summary>
              <JsonValue value={row.call} label="call" />
            </details>
          ),
        },
      ]}
    />
  );
}

/** The latest log lines. */
export function Lines({ logs }: { logs: PluginLogs['logs'] }) {
  if (!logs.length) return <Empty>Nothing was logged since the server started.</Empty>;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by key
    <div class="log" role="log" aria-label="Log lines" tabIndex={0}>
      {logs.map((line) => (
        <div key={line.number} class={`line level-${line.level}`}>
          <span class="soft num">{full(line.at, zone.value).slice(11, 23)}</span>
          <span class="soft">v{line.version}</span>
          <span class="level">{line.level}</span>
          <bdi class="text">{line.message}</bdi>
        </div>
      ))}
    </div>
  );
}
