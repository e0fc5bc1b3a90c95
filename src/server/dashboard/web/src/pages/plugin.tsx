// One plugin: versions, shadow, differing decisions, faults with their calls, log; promote and roll back.

import { useState } from 'preact/hooks';
import { all, get, optional, path, post, send } from '../api/client';
import { may } from '../api/session';
import type {
  Plugin,
  PluginDifferences,
  PluginFaults,
  PluginLogs,
  PluginVersion,
} from '../api/types';
import { bytes, count } from '../lib/format';
import { Differences, Faults, Lines } from '../plugin/tables';
import { useLoad } from '../state/live';
import { attempt } from '../state/notices';
import { Badge, Button, Facts, Failed, Loading, Section, Time } from '../ui/basics';
import { Confirm } from '../ui/dialog';
import { type Column, Table } from '../ui/table';
import { Users } from './plugins';

interface Loaded {
  plugin: Plugin;
  versions: PluginVersion[];
  differences: PluginDifferences | null;
  faults: PluginFaults | null;
  logs: PluginLogs | null;
}

/** The page. */
export function PluginPage({ name }: { name: string }) {
  const at = path`v1/plugins/${name}`;
  const load = async (signal: AbortSignal): Promise<Loaded> => {
    const plugin = await get<Plugin>(at, {}, signal);
    const [versions, differences, faults, logs] = await Promise.all([
      all<PluginVersion>(`${at}/versions`, 'versions'),
      plugin.shadow ? optional(get<PluginDifferences>(`${at}/differences`, {}, signal)) : null,
      optional(get<PluginFaults>(`${at}/faults`, {}, signal)),
      optional(get<PluginLogs>(`${at}/logs`, { limit: 200 }, signal)),
    ]);
    return { plugin, versions, differences, faults, logs };
  };
  const { data, error, reload } = useLoad(at, load, { every: 5000 });
  const [live, setLive] = useState<number | null>(null);
  if (!data) {
    return (
      <>
        <h1>
          <bdi>{name}</bdi>
        </h1>
        <Failed error={error} what="this plugin" />
        {error ? <a href="#/plugins">All plugins</a> : <Loading />}
      </>
    );
  }
  const { plugin } = data;
  const shadow = (version: number | null) =>
    attempt(
      async () => {
        if (version === null) await send('DELETE', `${at}/shadow`);
        else await send('PUT', `${at}/shadow`, { body: { version } });
        await reload();
      },
      version === null ? 'The shadow is removed.' : `Version ${version} is the shadow.`,
    );
  return (
    <>
      <div class="title">
        <h1>
          <bdi>{name}</bdi>
        </h1>
        {plugin.health.failing && <Badge word="failing" tone="failed" />}
        {may('admin') && plugin.shadow && (
          <div class="bar">
            <button type="button" onClick={() => setLive(plugin.shadow ?? null)}>
              Promote the shadow …
            </button>
            <Button onClick={() => shadow(null)}>Remove the shadow</Button>
          </div>
        )}
      </div>
      <Failed error={error} what="this plugin" />
      <Section title="Plugin">
        <About plugin={plugin} />
      </Section>
      <Section title="Versions">
        <Versions versions={data.versions} plugin={plugin} onLive={setLive} onShadow={shadow} />
      </Section>
      {data.differences && (
        <Section title="Differences of the shadow">
          <Differences found={data.differences} />
        </Section>
      )}
      <Section title="Faults">
        <Faults faults={data.faults?.faults ?? []} />
      </Section>
      <Section title="Log">
        <Lines logs={data.logs?.logs ?? []} />
      </Section>
      {live !== null && (
        <Confirm
          title={`Make version ${live} live?`}
          verb={live < plugin.live ? 'Roll back' : 'Promote'}
          onClose={() => setLive(null)}
          work={async () => {
            await post(`${at}/rollback`, { version: live });
            await reload();
          }}
        >
          <p>
            Version {live} decides from the next tick on, in place of version {plugin.live}.
            {data.differences &&
              live === plugin.shadow &&
              ` As the shadow it decided differently in ${count(data.differences.different)} of ${count(data.differences.compared)} cases.`}
          </p>
        </Confirm>
      )}
    </>
  );
}

function About({ plugin }: { plugin: Plugin }) {
  const { health, shadow_health: other } = plugin;
  const kinds = Object.entries(health.faults_by_kind).map(([kind, n]) => `${kind} ${n}`);
  return (
    <Facts
      rows={[
        ['about', (plugin.throttler ?? plugin.retry)?.about],
        ['roles', plugin.roles.join(', ')],
        ['used by', <Users plugin={plugin} />],
        [
          'live',
          `version ${plugin.live}${plugin.runnable ? '' : ', without code for this release'}`,
        ],
        ['calls', count(health.calls)],
        ['faults', `${count(health.faults)}${kinds.length ? `: ${kinds.join(', ')}` : ''}`],
        [
          'shadow',
          plugin.shadow &&
            `version ${plugin.shadow}, ${count(other?.calls)} calls, ${count(other?.faults)} faults`,
        ],
        [
          'fuel of the latest call',
          health.last_usage &&
            `${count(health.last_usage.fuel)}, memory ${bytes(health.last_usage.memory_bytes)}`,
        ],
      ]}
    />
  );
}

function Versions(props: {
  versions: PluginVersion[];
  plugin: Plugin;
  onLive: (n: number) => void;
  onShadow: (n: number) => unknown;
}) {
  const rows = [...props.versions].reverse();
  const columns: Column<PluginVersion>[] = [
    {
      id: 'number',
      label: 'Version',
      cell: (row) => row.number,
      sort: (row) => row.number,
      number: true,
    },
    {
      id: 'state',
      label: 'State',
      unseen: true,
      cell: (row) =>
        row.live ? (
          <Badge word="live" tone="running" />
        ) : row.shadow ? (
          <Badge word="shadow" tone="scheduled" />
        ) : (
          ''
        ),
    },
    { id: 'pushed', label: 'Pushed', cell: (row) => <Time at={row.pushed_at} /> },
    { id: 'bytes', label: 'Size', cell: (row) => bytes(row.bytes), number: true },
    {
      id: 'sha',
      label: 'SHA-256',
      cell: (row) => <code title={row.sha256}>{row.sha256.slice(0, 12)}</code>,
    },
    {
      id: 'act',
      label: 'Actions',
      unseen: true,
      cell: (row) =>
        may('admin') &&
        !row.live && (
          <span class="row">
            <button type="button" class="small" onClick={() => props.onLive(row.number)}>
              {row.number < props.plugin.live ? 'Roll back to it …' : 'Promote …'}
            </button>
            {!row.shadow && (
              <Button kind="small" onClick={() => props.onShadow(row.number)}>
                Run as shadow
              </Button>
            )}
          </span>
        ),
    },
  ];
  return (
    <Table caption="Versions" columns={columns} rows={rows} id={(row) => String(row.number)} />
  );
}
