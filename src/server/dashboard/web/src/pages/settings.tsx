// Tokens, and the settings of the server.

import { useState } from 'preact/hooks';
import { all, get, optional, path, send } from '../api/client';
import { isAdmin, may, session } from '../api/session';
import type { ServerSetting, Token } from '../api/types';
import { instant } from '../lib/format';
import { NewToken } from '../settings/new-token';
import { useLoad } from '../state/live';
import { notify } from '../state/notices';
import { Badge, Empty, Facts, Failed, Section, Time } from '../ui/basics';
import { Confirm } from '../ui/dialog';
import { type Column, Table } from '../ui/table';

/** The page. */
export function SettingsPage() {
  const now = session.value;
  return (
    <>
      <div class="title">
        <h1>Settings</h1>
      </div>
      <Section title="You">
        <Facts
          rows={[
            [
              'name',
              now?.signed_in_by === 'open'
                ? 'every local caller: the server has no token yet'
                : now?.name,
            ],
            ['scopes', now?.scopes.join(', ')],
            ['signed in by', now?.signed_in_by],
            ['queues', now?.queues?.join(', ')],
            ['types', now?.types?.join(', ')],
            [
              'server',
              now?.server && `tidegate ${now.server.version}, ${now.server.deployment_mode}`,
            ],
            ['console', now?.console?.read_only && 'read only'],
          ]}
        />
      </Section>
      {isAdmin.value && (
        <>
          <Tokens />
          <ServerSettings />
        </>
      )}
    </>
  );
}

function bounds(token: Token): string {
  return (
    [
      ...(token.queues ?? []).map((name) => `queue ${name}`),
      ...(token.types ?? []).map((name) => `type ${name}`),
    ].join(', ') || 'all'
  );
}

function Tokens() {
  const { data, error, reload } = useLoad('tokens', () => all<Token>('v1/tokens', 'tokens'), {
    every: 10_000,
  });
  const [create, setCreate] = useState(false);
  const [revoke, setRevoke] = useState<Token | null>(null);
  const columns: Column<Token>[] = [
    { id: 'name', label: 'Name', cell: (row) => <bdi>{row.name}</bdi>, sort: (row) => row.name },
    {
      id: 'scopes',
      label: 'Scopes',
      cell: (row) => row.scopes.join(', '),
      sort: (row) => row.scopes.join(),
    },
    { id: 'bounds', label: 'Only', cell: bounds },
    {
      id: 'created',
      label: 'Created',
      cell: (row) => <Time at={row.created_at} />,
      sort: (row) => instant(row.created_at),
    },
    {
      id: 'used',
      label: 'Last used',
      cell: (row) => <Time at={row.last_used_at} />,
      sort: (row) => instant(row.last_used_at),
    },
    {
      id: 'expires',
      label: 'Expires',
      cell: (row) => (row.expires_at ? <Time at={row.expires_at} /> : 'never'),
      sort: (row) => instant(row.expires_at),
    },
    { id: 'id', label: 'Id', cell: (row) => <code>{row.id}</code> },
    {
      id: 'act',
      label: 'Actions',
      unseen: true,
      cell: (row) =>
        may('admin') && (
          <button
            type="button"
            class="small danger"
            aria-label={`Revoke ${row.name}`}
            onClick={() => setRevoke(row)}
          >
            Revoke …
          </button>
        ),
    },
  ];
  return (
    <Section
      title="Tokens"
      side={
        may('admin') && (
          <button type="button" class="small" onClick={() => setCreate(true)}>
            New token …
          </button>
        )
      }
    >
      <Failed error={error} what="tokens" />
      {data?.length === 0 && (
        <Empty>
          There are no tokens: the server lets every local caller in. The first one must have the
          scope admin.
        </Empty>
      )}
      {data && data.length > 0 && (
        <Table caption="Tokens" columns={columns} rows={data} id={(row) => row.id} />
      )}
      {create && (
        <NewToken
          first={data?.length === 0}
          onClose={() => setCreate(false)}
          onDone={() => void reload()}
        />
      )}
      {revoke && (
        <Confirm
          title={`Revoke ${revoke.name}?`}
          verb="Revoke the token"
          danger
          onClose={() => setRevoke(null)}
          work={async () => {
            await send('DELETE', path`v1/tokens/${revoke.id}`);
            notify('done', `${revoke.name} is revoked.`);
            await reload();
          }}
        >
          <p>Whatever uses it is refused from now on. This cannot be undone.</p>
          <p class="soft">
            Scopes: {revoke.scopes.join(', ')}. Last used: <Time at={revoke.last_used_at} />
          </p>
        </Confirm>
      )}
    </Section>
  );
}

function ServerSettings() {
  const load = (signal: AbortSignal) =>
    optional(get<{ settings: ServerSetting[] }>('v1/settings', {}, signal));
  const { data, error } = useLoad('settings', load, { every: 60_000 });
  if (!data) return <Failed error={error} what="settings" />;
  return (
    <Section title="Server">
      <p class="soft">They are set where the server is started, not here.</p>
      <Table<ServerSetting>
        caption="Server settings"
        rows={data.settings}
        id={(row) => row.name}
        columns={[
          {
            id: 'name',
            label: 'Setting',
            cell: (row) => <code>{row.name}</code>,
            sort: (row) => row.name,
          },
          {
            id: 'value',
            label: 'Value',
            cell: (row) => <bdi>{row.value === null ? '–' : String(row.value)}</bdi>,
          },
          {
            id: 'from',
            label: 'From',
            cell: (row) => (
              <Badge word={row.from} tone={row.from === 'default' ? 'expired' : 'running'} />
            ),
            sort: (row) => row.from,
          },
          { id: 'about', label: 'About', cell: (row) => row.about ?? '' },
        ]}
      />
    </Section>
  );
}
