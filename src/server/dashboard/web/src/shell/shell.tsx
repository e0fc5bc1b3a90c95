// What surrounds every page: navigation, search, and the state of the connection.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { isAdmin, session, signOut } from '../api/session';
import { span, zoneName } from '../lib/format';
import { paused, polls, selecting, streaming } from '../state/live';
import { INTERVALS, interval, theme, zone } from '../state/prefs';
import { route } from '../state/router';
import { Banner, Notices } from './banner';
import { Help } from './help';
import { useKeys } from './keys';
import { Operations } from './operations';
import { Search } from './search';

/** The pages of the navigation: address, title, and whether only admin may read them. */
export const PAGES: readonly { to: string; title: string; key: string; admin?: boolean }[] = [
  { to: 'overview', title: 'Overview', key: 'o' },
  { to: 'jobs', title: 'Jobs', key: 'j' },
  { to: 'errors', title: 'Errors', key: 'e' },
  { to: 'types', title: 'Job types', key: 'y' },
  { to: 'workers', title: 'Workers', key: 'w' },
  { to: 'schedules', title: 'Schedules', key: 's' },
  { to: 'triggers', title: 'Triggers', key: 't' },
  { to: 'plugins', title: 'Plugins', key: 'p' },
  { to: 'audit', title: 'Audit', key: 'a', admin: true },
  { to: 'settings', title: 'Settings', key: ',' },
];

/** The frame of all pages. */
export function Shell({ children }: { children: ComponentChildren }) {
  const [help, setHelp] = useState(false);
  const [menu, setMenu] = useState(false);
  const main = useRef<HTMLElement>(null);
  useKeys(() => setHelp(true));
  const place = route.value?.parts.join('/') ?? '';
  const before = useRef(place);
  useEffect(() => {
    setMenu(false);
    if (before.current === place) return;
    before.current = place;
    // A screen reader begins the new page, and the next Tab goes to its first control.
    main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [place]);
  const skip = (event: Event) => {
    event.preventDefault();
    main.current?.focus();
  };
  return (
    <>
      {/* biome-ignore lint/a11y/useValidAnchor: it is a link within the page; the hash is the router's */}
      <a class="skip" href="#main" onClick={skip}>
        Skip to the content
      </a>
      <header class="top">
        <button
          type="button"
          class="menu quiet"
          aria-expanded={menu}
          aria-controls="nav"
          onClick={() => setMenu(!menu)}
        >
          <span aria-hidden="true">☰</span> Menu
        </button>
        <a class="brand" href="#/overview">
          {session.value?.console?.title ?? 'tidegate'}
        </a>
        <Search />
        <Live />
        <button
          type="button"
          class="quiet help"
          aria-label="Keys and help"
          onClick={() => setHelp(true)}
        >
          ?
        </button>
      </header>
      <Navigation open={menu} />
      <main id="main" ref={main} tabIndex={-1}>
        <Banner />
        {children}
      </main>
      <Operations />
      <Notices />
      {help && <Help onClose={() => setHelp(false)} />}
    </>
  );
}

function Navigation({ open }: { open: boolean }) {
  const shown = route.value?.parts[0] ?? 'overview';
  const at = shown === 'queues' ? 'overview' : shown;
  return (
    <aside id="nav" class={open ? 'sidebar open' : 'sidebar'} aria-label="Navigation and choices">
      <nav aria-label="Pages">
        {PAGES.filter((page) => !page.admin || isAdmin.value).map((page) => (
          <a key={page.to} href={`#/${page.to}`} aria-current={page.to === at ? 'page' : undefined}>
            {page.title}
          </a>
        ))}
      </nav>
      <Servers />
      <Choices />
      <Caller />
    </aside>
  );
}

function Servers() {
  const servers = session.value?.console?.servers ?? [];
  if (!servers.length) return null;
  return (
    <nav aria-label="Servers" class="servers">
      <span class="soft">Servers</span>
      {servers.map((server) => (
        <a key={server.url} href={server.url} rel="noreferrer">
          {server.name}
        </a>
      ))}
    </nav>
  );
}

function Choices() {
  const themes = { auto: 'System colours', light: 'Light', dark: 'Dark' } as const;
  const next = { auto: 'light', light: 'dark', dark: 'auto' } as const;
  return (
    <div class="choices">
      <button
        type="button"
        class="quiet"
        onClick={() => {
          zone.value = zone.value === 'utc' ? 'local' : 'utc';
        }}
        title="Show times in UTC, or in the zone of this browser"
      >
        Times: {zone.value === 'utc' ? 'UTC' : `local (${zoneName('local')})`}
      </button>
      <button
        type="button"
        class="quiet"
        onClick={() => {
          theme.value = next[theme.value];
        }}
      >
        {themes[theme.value]}
      </button>
      {polls.value && (
        <label class="interval">
          Read again
          <select
            value={String(interval.value)}
            onChange={(event) => {
              interval.value = Number(event.currentTarget.value);
            }}
          >
            {INTERVALS.map((seconds) => (
              <option key={seconds} value={String(seconds)}>
                {seconds ? `every ${span(seconds)}` : 'as usual'}
              </option>
            ))}
          </select>
        </label>
      )}
    </div>
  );
}

function Caller() {
  const now = session.value;
  const open = now?.signed_in_by === 'open';
  const bounds = [
    ...(now?.queues ?? []).map((name) => `queue ${name}`),
    ...(now?.types ?? []).map((name) => `type ${name}`),
  ];
  return (
    <div class="caller">
      <strong>{open ? 'No sign-in needed' : (now?.name ?? 'Signed in')}</strong>
      <span class="soft">{now?.console?.read_only ? 'read only' : now?.scopes.join(', ')}</span>
      {bounds.length > 0 && <span class="soft">only {bounds.join(', ')}</span>}
      {!open && (
        <button type="button" class="small" onClick={() => void signOut().catch(() => null)}>
          Sign out
        </button>
      )}
      <span class="soft">tidegate {now?.server?.version}</span>
    </div>
  );
}

function Live() {
  const waits = selecting.value && !paused.value;
  const how = streaming.value ? 'Live' : 'Polling';
  const text = paused.value ? 'Paused' : waits ? 'Waits: text selected' : how;
  return (
    <button
      type="button"
      class={`live ${paused.value || waits ? 'off' : 'on'}`}
      aria-pressed={paused.value}
      title={paused.value ? 'Resume updates' : 'Pause updates'}
      onClick={() => {
        paused.value = !paused.value;
      }}
    >
      <span class="dot" aria-hidden="true" />
      <span>{text}</span>
      <span class="unseen">: {paused.value ? 'resume updates' : 'pause updates'}</span>
    </button>
  );
}
