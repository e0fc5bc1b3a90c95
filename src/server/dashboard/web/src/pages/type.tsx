// One job type: its settings, and its history in its queue.

import { useState } from 'preact/hooks';
import { get, optional, path, send } from '../api/client';
import { may } from '../api/session';
import type { History, JobType } from '../api/types';
import { EnqueueDialog } from '../jobs/enqueue';
import type { JsonObject } from '../lib/diff';
import { href, queueHref } from '../lib/route';
import { HistorySection } from '../queue/history';
import { SettingsEditor } from '../settings/editor';
import { ShownSettings } from '../settings/shown';
import { TYPE } from '../settings/specs';
import { useLoad } from '../state/live';
import { Failed, Loading, Section } from '../ui/basics';

/** The page. */
export function TypePage({ name }: { name: string }) {
  const at = path`v1/job-types/${name}`;
  const load = async (signal: AbortSignal) => {
    const [type, history] = await Promise.all([
      send<JobType>('GET', at, { signal }),
      optional(get<History>(`${at}/history`, {}, signal)),
    ]);
    return { type: type.value, etag: type.etag, history };
  };
  const loaded = useLoad(at, load, { on: (change) => change.kind === 'job_type', every: 10_000 });
  const [open, setOpen] = useState<'edit' | 'enqueue' | ''>('');
  const { data } = loaded;
  return (
    <>
      <div class="title">
        <h1>
          <bdi>{name}</bdi>
        </h1>
        {data && (
          <div class="bar">
            <a class="button" href={href(['jobs'], { type: name })}>
              Its jobs
            </a>
            <a class="button" href={queueHref(data.type.queue ?? 'default')}>
              Its queue
            </a>
            {may('enqueue') && (
              <button type="button" onClick={() => setOpen('enqueue')}>
                Enqueue …
              </button>
            )}
            {may('admin') && (
              <button type="button" onClick={() => setOpen('edit')}>
                Edit settings …
              </button>
            )}
          </div>
        )}
      </div>
      <Failed error={loaded.error} what="this job type" />
      {!data && !loaded.error && <Loading />}
      {data?.history && (
        <HistorySection kind="job-types" name={name} at={`${at}/history`} hour={data.history} />
      )}
      {data && (
        <Section title="Settings">
          <ShownSettings settings={data.type as unknown as JsonObject} specs={TYPE} />
          <p class="soft">
            Jobs keep the windows, priority and attempts that they were accepted with. A change
            applies to later ones.
          </p>
        </Section>
      )}
      {open === 'enqueue' && <EnqueueDialog type={name} onClose={() => setOpen('')} />}
      {open === 'edit' && data && (
        <SettingsEditor
          title={`Settings of ${name}`}
          at={at}
          before={data.type as unknown as JsonObject}
          etag={data.etag}
          specs={TYPE}
          onClose={() => setOpen('')}
          onDone={() => void loaded.reload()}
        />
      )}
    </>
  );
}
