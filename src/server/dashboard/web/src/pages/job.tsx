// One job: its life as a timeline, why it waits, its errors, log, data, and what can be done to it.

import { useState } from 'preact/hooks';
import { get, optional, path, send } from '../api/client';
import { may } from '../api/session';
import type { Explanation, Job } from '../api/types';
import { About } from '../job/about';
import { CancelDialog, EditDialog, ReplayDialog, type Subject } from '../job/dialogs';
import { Log } from '../job/log';
import { Timeline } from '../job/timeline-view';
import { bytes, holder } from '../lib/format';
import { rawField } from '../lib/json';
import { useLoad, useStreamFilter } from '../state/live';
import { attempt } from '../state/notices';
import { Badge, Button, Copy, Failed, Loading, Section, Time } from '../ui/basics';
import { JsonText, JsonValue } from '../ui/code';

interface Loaded extends Subject {
  result: string | null;
  checkpoint: string | null;
  why: Explanation | null;
}

/** The page. */
export function JobPage({ type, id }: { type: string; id: string }) {
  useStreamFilter(undefined, id);
  const at = path`v1/jobs/${type}/${id}`;
  const loaded = useLoad(
    at,
    async (signal): Promise<Loaded> => {
      const { value: job, text, etag } = await send<Job>('GET', at, { signal });
      const waits = job.state === 'scheduled';
      const why = waits
        ? await optional(get<Explanation>(`${at}/explain`, {}, signal)).catch(() => null)
        : null;
      const raw = (name: string) => rawField(text, name);
      return {
        job,
        etag,
        why,
        data: raw('data'),
        result: raw('result'),
        checkpoint: raw('checkpoint'),
      };
    },
    { on: (change) => change.job?.id === id || change.kind === 'removed' },
  );
  const { data, error } = loaded;
  if (!data) {
    return (
      <>
        <h1>
          <bdi>{id}</bdi>
        </h1>
        <Failed error={error} what="this job" />
        {error ? <a href="#/jobs">All jobs</a> : <Loading />}
      </>
    );
  }
  const { job } = data;
  return (
    <>
      <div class="title">
        <h1>
          <bdi>{job.id}</bdi>
        </h1>
        <Badge word={job.phase} />
        <Copy text={job.id} label="Copy the id" />
      </div>
      <Failed error={error} what="this job" />
      <Actions data={data} reload={loaded.reload} />
      {data.why && <Why why={data.why} />}
      <Progress job={job} />
      <div class="columns">
        <Section title="Timeline">
          <Timeline job={job} why={data.why} />
        </Section>
        <Section title="Job">
          <About job={job} />
        </Section>
      </div>
      <Section title="Log">
        <Log job={job} />
      </Section>
      <div class="columns">
        <Body title="Data" raw={data.data} size={job.data_bytes} />
        <Body title="Result" raw={data.result} size={job.result_bytes} />
        <Body title="Checkpoint" raw={data.checkpoint} size={job.checkpoint_bytes} />
        {job.original && (
          <Section title="As it came, before a retry strategy changed it">
            <JsonValue value={job.original} label="original" />
          </Section>
        )}
      </div>
    </>
  );
}

function Actions({ data, reload }: { data: Loaded; reload: () => Promise<void> }) {
  const [open, setOpen] = useState<'edit' | 'replay' | 'cancel' | ''>('');
  const { job } = data;
  if (!may('enqueue')) return null;
  const waits = job.state === 'scheduled';
  const ended = !waits && job.state !== 'running';
  const runNow = () =>
    attempt(async () => {
      await send('PATCH', path`v1/jobs/${job.type}/${job.id}`, { body: { run_at: null } });
      await reload();
    }, 'The job is due now.');
  const props = { ...data, onClose: () => setOpen(''), onDone: () => void reload() };
  // Buttons keep their places when the job changes, so that a click never hits another one.
  return (
    <div class="bar">
      <Button onClick={runNow} disabled={!waits}>
        Run now
      </Button>
      <button type="button" disabled={!waits} onClick={() => setOpen('edit')}>
        Edit …
      </button>
      <button type="button" disabled={waits} onClick={() => setOpen('replay')}>
        Replay …
      </button>
      <button type="button" class="danger" disabled={ended} onClick={() => setOpen('cancel')}>
        Cancel …
      </button>
      {open === 'edit' && <EditDialog {...props} />}
      {open === 'replay' && <ReplayDialog {...props} />}
      {open === 'cancel' && <CancelDialog {...props} />}
    </div>
  );
}

function Why({ why }: { why: Explanation }) {
  const { workers } = why;
  const known = workers && typeof workers.known === 'number';
  return (
    <div class="banner info">
      <strong>{why.held_by ? `Held by ${holder(why.held_by)}.` : 'Nothing holds it.'}</strong>{' '}
      {why.reason}
      <div class="soft">
        {why.since && (
          <>
            since <Time at={why.since} />{' '}
          </>
        )}
        {why.earliest_at && (
          <>
            · earliest start <Time at={why.earliest_at} />{' '}
          </>
        )}
        {workers && (
          <>
            · {workers.in_use}{' '}
            {typeof workers.capacity === 'number' ? `of ${workers.capacity} ` : ''}slots in use
            {known &&
              `, ${workers.known} workers known, ${workers.polling} polling, ${workers.busy} busy`}
          </>
        )}
      </div>
    </div>
  );
}

function Progress({ job }: { job: Job }) {
  const progress = job.running?.progress;
  if (!progress) return null;
  return (
    <div class="banner info">
      <label>
        <progress max={100} value={progress.percent ?? 0} /> {Math.round(progress.percent ?? 0)} %
      </label>{' '}
      <bdi>{progress.note}</bdi>
    </div>
  );
}

function Body({
  title,
  raw,
  size,
}: {
  title: string;
  raw: string | null;
  size: number | null | undefined;
}) {
  if (raw === null && !size) return null;
  if (raw === 'null' && title !== 'Data') return null;
  return (
    <Section title={title}>
      {raw === null ? (
        <p class="soft">It has {bytes(size)}, which is more than an answer shows.</p>
      ) : (
        <JsonText raw={raw} label={title.toLowerCase()} />
      )}
    </Section>
  );
}
