// One queue: why it is idle or slow, its limits live, its history, its settings, and what other ones would do.

import { useState } from 'preact/hooks';
import { get, optional, path, post, send } from '../api/client';
import { may, serverless, session } from '../api/session';
import type { History, Queue, QueueExplanation } from '../api/types';
import type { JsonObject } from '../lib/diff';
import { count } from '../lib/format';
import { Phases } from '../queue/figures';
import { HistorySection } from '../queue/history';
import { Jobs, Types } from '../queue/jobs';
import { PurgeDialog } from '../queue/purge';
import { WhatIf } from '../queue/what-if';
import { RunningTypes, TypeWorkers, Uses, Why } from '../queue/why';
import { SettingsEditor } from '../settings/editor';
import { ShownSettings } from '../settings/shown';
import { QUEUE } from '../settings/specs';
import { useLoad, useStreamFilter } from '../state/live';
import { attempt } from '../state/notices';
import { route } from '../state/router';
import { Badge, Empty, Failed, Loading, Section } from '../ui/basics';
import { Confirm } from '../ui/dialog';
import { Embedded } from '../ui/embed';

interface Loaded {
  queue: Queue;
  etag: string | null;
  why: QueueExplanation | null;
  history: History | null;
}

/** The page. */
export function QueuePage({ name }: { name: string }) {
  useStreamFilter(name);
  const at = path`v1/queues/${name}`;
  const load = async (signal: AbortSignal): Promise<Loaded> => {
    const [answer, why, history] = await Promise.all([
      send<Queue>('GET', at, { signal }),
      optional(get<QueueExplanation>(`${at}/explain`, {}, signal)),
      optional(get<History>(`${at}/history`, {}, signal)),
    ]);
    return { queue: answer.value, etag: answer.etag, why, history };
  };
  const loaded = useLoad(at, load, {
    on: (change) => change.kind === 'job' || change.kind === 'queue',
  });
  const [open, setOpen] = useState<'edit' | 'pause' | 'purge' | ''>('');
  const [tried, setTried] = useState<JsonObject>({});
  const [whatIf, setWhatIf] = useState(route.value?.query.get('part') === 'what-if');
  const { data } = loaded;
  if (!data) {
    return (
      <>
        <h1>
          <bdi>{name}</bdi>
        </h1>
        <Failed error={loaded.error} what="this queue" />
        {loaded.error ? <a href="#/overview">All queues</a> : <Loading />}
      </>
    );
  }
  const { queue, why, history } = data;
  const settings = queue as unknown as JsonObject;
  const simulates = may('admin') && session.value?.server?.simulate === true && !serverless.value;
  const edit = (start: JsonObject) => {
    setTried(start);
    setOpen('edit');
  };
  const resume = () =>
    attempt(async () => {
      await post(`${at}/resume`);
      await loaded.reload();
    }, `${name} is resumed.`);
  return (
    <>
      <div class="title">
        <h1>
          <bdi>{name}</bdi>
        </h1>
        {queue.paused && <Badge word="paused" />}
        {may('admin') && (
          <div class="bar">
            <button type="button" onClick={() => (queue.paused ? resume() : setOpen('pause'))}>
              {queue.paused ? 'Resume' : 'Pause …'}
            </button>
            <button type="button" onClick={() => edit({})}>
              Edit settings …
            </button>
            <button type="button" class="danger" onClick={() => setOpen('purge')}>
              Purge …
            </button>
          </div>
        )}
      </div>
      <Failed error={loaded.error} what="this queue" />
      <Phases queue={queue} history={history} />
      <Section title="Why is it idle or slow?">
        {why ? <Why why={why} /> : <Empty>This server does not explain queues.</Empty>}
      </Section>
      {history && <HistorySection kind="queues" name={name} at={`${at}/history`} hour={history} />}
      <div class="columns">
        <Section title="Settings">
          <ShownSettings settings={settings} specs={QUEUE} />
          {!why && <Uses uses={queue.status?.constraints ?? []} />}
        </Section>
        <Types queue={name} />
      </div>
      <Jobs
        queue={name}
        phase="running"
        title="Running now"
        side={why && <RunningTypes why={why} />}
      />
      <Jobs queue={name} phase="ready" title="Waits longest" />
      {why && why.workers.length > 0 && (
        <Section title="Workers">
          <TypeWorkers rows={why.workers} />
        </Section>
      )}
      {simulates && (
        <Section
          title="What if"
          side={
            <button
              type="button"
              class="small"
              aria-expanded={whatIf}
              onClick={() => setWhatIf(!whatIf)}
            >
              {whatIf ? 'Close' : 'Try other settings'}
            </button>
          }
        >
          {whatIf ? (
            <WhatIf queue={name} settings={settings} onApply={edit} />
          ) : (
            <p class="soft">
              Run the recorded jobs of the last hour with another limit, rate, order or plugin.
            </p>
          )}
        </Section>
      )}
      <Embedded
        address={
          session.value?.console?.embed?.includes('{queue}') ? session.value.console.embed : null
        }
        queue={name}
      />
      {open === 'edit' && (
        <SettingsEditor
          title={`Settings of ${name}`}
          at={at}
          before={settings}
          etag={data.etag}
          specs={QUEUE}
          start={tried}
          onClose={() => setOpen('')}
          onDone={() => void loaded.reload()}
        />
      )}
      {open === 'purge' && (
        <PurgeDialog queue={name} onClose={() => setOpen('')} onDone={() => void loaded.reload()} />
      )}
      {open === 'pause' && (
        <Confirm
          title={`Pause ${name}?`}
          verb="Pause"
          onClose={() => setOpen('')}
          work={async () => {
            await post(`${at}/pause`);
            await loaded.reload();
          }}
        >
          <p>
            No further job starts, critical ones included.{' '}
            {count(queue.status?.phases?.running ?? 0)} running and{' '}
            {count(queue.status?.ready ?? 0)} ready now.
          </p>
        </Confirm>
      )}
    </>
  );
}
