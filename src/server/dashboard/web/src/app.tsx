// Which page is shown: the sign-in, or the one that the address names.

import type { ComponentType } from 'preact';
import { useEffect } from 'preact/hooks';
import { connection } from './api/client';
import { readSession, session } from './api/session';
import type { Route } from './lib/route';
import { AuditPage } from './pages/audit';
import { ErrorsPage } from './pages/errors';
import { JobPage } from './pages/job';
import { JobsPage } from './pages/jobs';
import { OverviewPage } from './pages/overview';
import { PluginPage } from './pages/plugin';
import { PluginsPage } from './pages/plugins';
import { QueuePage } from './pages/queue';
import { SchedulePage } from './pages/schedule';
import { SchedulesPage } from './pages/schedules';
import { SettingsPage } from './pages/settings';
import { SignIn } from './pages/sign-in';
import { TriggerPage } from './pages/trigger';
import { TriggersPage } from './pages/triggers';
import { TypePage } from './pages/type';
import { TypesPage } from './pages/types';
import { WorkersPage } from './pages/workers';
import { Banner } from './shell/banner';
import { Shell } from './shell/shell';
import { route } from './state/router';
import { Loading } from './ui/basics';
import { Boundary } from './ui/boundary';

/** A page with one name in its address. */
type Named = ComponentType<{ name: string }>;

const LISTS: Record<string, [string, ComponentType]> = {
  overview: ['Overview', OverviewPage],
  jobs: ['Jobs', JobsPage],
  errors: ['Errors', ErrorsPage],
  types: ['Job types', TypesPage],
  workers: ['Workers', WorkersPage],
  schedules: ['Schedules', SchedulesPage],
  triggers: ['Triggers', TriggersPage],
  plugins: ['Plugins', PluginsPage],
  audit: ['Audit', AuditPage],
  settings: ['Settings', SettingsPage],
};

const ITEMS: Record<string, [string, Named]> = {
  queues: ['Queue', QueuePage],
  types: ['Type', TypePage],
  schedules: ['Schedule', SchedulePage],
  triggers: ['Trigger', TriggerPage],
  plugins: ['Plugin', PluginPage],
};

/** The console. */
export function App() {
  const now = session.value;
  useEffect(() => {
    if (now) return;
    // The first answer did not come: the server may be starting.
    const timer = setInterval(() => void readSession().catch(() => null), 2000);
    return () => clearInterval(timer);
  }, [now]);
  if (!now) {
    return (
      <main class="alone">
        <Banner />
        {connection.value === 'ok' && <Loading />}
      </main>
    );
  }
  if (!now.authenticated) return <SignIn />;
  return (
    <Shell>
      <Boundary key={route.value?.parts.join('/') ?? ''}>{page(route.value)}</Boundary>
    </Shell>
  );
}

function page(shown: Route | null) {
  const [first = 'overview', name, id, ...more] = shown?.parts ?? ['?'];
  const list = LISTS[first];
  const item = ITEMS[first];
  if (list && name === undefined) {
    const [title, Page] = list;
    return <Titled key={first} title={title} page={<Page />} />;
  }
  if (item && name !== undefined && id === undefined) {
    const [title, Page] = item;
    return (
      <Titled key={`${first} ${name}`} title={`${title} ${name}`} page={<Page name={name} />} />
    );
  }
  if (
    (first === 'jobs' || first === 'job') &&
    name !== undefined &&
    id !== undefined &&
    !more.length
  ) {
    return (
      <Titled
        key={`job ${name} ${id}`}
        title={`Job ${id}`}
        page={<JobPage type={name} id={id} />}
      />
    );
  }
  if ((first === 'queues' || first === 'sign-in') && name === undefined)
    return <Titled key="overview" title="Overview" page={<OverviewPage />} />;
  return <Titled key="nowhere" title="Not found" page={<NotFound />} />;
}

function Titled({ title, page }: { title: string; page: preact.ComponentChild }) {
  const server = session.value?.console?.title ?? 'tidegate';
  useEffect(() => {
    document.title = `${title} · ${server}`;
  }, [title, server]);
  return <>{page}</>;
}

function NotFound() {
  return (
    <>
      <h1>Not found</h1>
      <p>
        No page has this address. <a href="#/overview">Go to the overview</a>
      </p>
    </>
  );
}
