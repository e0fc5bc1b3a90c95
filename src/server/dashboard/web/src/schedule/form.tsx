// Creating and editing a schedule, with the next occurrences of the rule before it is saved.

import { useState } from 'preact/hooks';
import { ApiError, message, path, send, serverNow } from '../api/client';
import { dryRuns } from '../api/session';
import type { Schedule } from '../api/types';
import type { JsonObject } from '../lib/diff';
import { resolve } from '../lib/filter';
import { fault, pretty, withRaw } from '../lib/json';
import { href } from '../lib/route';
import { useNames } from '../state/names';
import { notify } from '../state/notices';
import { go } from '../state/router';
import { Button } from '../ui/basics';
import { Confirm } from '../ui/dialog';
import { AreaField, SelectField, TextField } from '../ui/fields';
import { Instants } from './instants';

interface Draft {
  name: string;
  type: string;
  rule: 'cron' | 'every';
  cron: string;
  tz: string;
  every: string;
  starts: string;
  ends: string;
  missed: string;
  expires: string;
  data: string;
}

const NEW: Draft = {
  name: '',
  type: '',
  rule: 'cron',
  cron: '0 3 * * *',
  tz: Intl.DateTimeFormat().resolvedOptions().timeZone,
  every: '3600',
  starts: '',
  ends: '',
  missed: 'one',
  expires: '',
  data: 'null',
};

function draftOf(schedule: Schedule, data: string | null): Draft {
  return {
    name: schedule.name,
    type: schedule.type,
    rule: schedule.cron ? 'cron' : 'every',
    cron: schedule.cron ?? NEW.cron,
    tz: schedule.tz ?? '',
    every: String(schedule.every_seconds ?? NEW.every),
    starts: schedule.starts_at ?? '',
    ends: schedule.ends_at ?? '',
    missed: schedule.missed ?? 'one',
    expires: String(schedule.expires_after_seconds ?? ''),
    data: pretty(data ?? 'null'),
  };
}

/** The body for a draft. A PATCH takes null for what is reset, a PUT leaves it out by null as well. */
export function scheduleBody(draft: Draft, now: number): string {
  const cron = draft.rule === 'cron';
  const fields: JsonObject = {
    type: draft.type,
    cron: cron ? draft.cron : null,
    tz: cron && draft.tz ? draft.tz : null,
    every_seconds: cron ? null : Number(draft.every),
    starts_at: draft.starts ? resolve(draft.starts, now) : null,
    ends_at: draft.ends ? resolve(draft.ends, now) : null,
    missed: draft.missed,
    expires_after_seconds: draft.expires ? Number(draft.expires) : null,
  };
  return withRaw(fields, { data: draft.data.trim() || 'null' });
}

/** The dialog. */
export function ScheduleForm(props: {
  schedule?: Schedule;
  data?: string | null;
  etag?: string | null;
  onClose: () => void;
  onDone: () => void;
}) {
  // The schedule may change while it is edited. The change is then refused.
  const [{ schedule, etag = null }] = useState(props);
  const [draft, setDraft] = useState(() =>
    schedule ? draftOf(schedule, props.data ?? null) : NEW,
  );
  const [field, setField] = useState<[string, string]>(['', '']);
  const [next, setNext] = useState<string[] | null>(null);
  const [about, setAbout] = useState('');
  const names = useNames().data;
  const set = (part: Partial<Draft>) => {
    setDraft({ ...draft, ...part });
    setNext(null);
  };
  const errorOf = (name: string) => (field[0] === name ? field[1] : undefined);
  const wrong = fault(draft.data || 'null') ?? undefined;
  const take = (error: unknown): never => {
    if (error instanceof ApiError) setField([error.field, error.message]);
    throw error;
  };
  const preview = async () => {
    setAbout('');
    setField(['', '']);
    try {
      const raw = scheduleBody(draft, serverNow());
      const query = { dry_run: 'true' };
      const to = path`v1/schedules/${draft.name || 'preview'}`;
      setNext((await send<Schedule>('PUT', to, { raw, query })).value.next);
    } catch (error) {
      const old =
        error instanceof ApiError && (error.kind === 'not_found' || error.kind === 'unsupported');
      setAbout(old ? 'This server previews no rules.' : message(error));
      if (error instanceof ApiError && error.field) setField([error.field, error.message]);
    }
  };
  const work = async () => {
    const raw = scheduleBody(draft, serverNow());
    const to = path`v1/schedules/${draft.name}`;
    const method = schedule ? 'PATCH' : 'PUT';
    await send(method, to, { raw, etag }).catch(take);
    notify('done', schedule ? 'The schedule is changed.' : 'The schedule is created.');
    props.onDone();
    if (!schedule) go(href(['schedules', draft.name]));
  };
  return (
    <Confirm
      title={schedule ? `Edit ${schedule.name}` : 'New schedule'}
      verb={schedule ? 'Change the schedule' : 'Create the schedule'}
      disabled={!draft.name || !draft.type || Boolean(wrong)}
      onClose={props.onClose}
      work={work}
    >
      {!schedule && (
        <TextField
          label="Name"
          value={draft.name}
          error={errorOf('schedule')}
          onInput={(name) => set({ name })}
        />
      )}
      <TextField
        label="Job type"
        value={draft.type}
        list={names?.types ?? []}
        error={errorOf('type')}
        onInput={(type) => set({ type })}
      />
      <SelectField
        label="Rule"
        value={draft.rule}
        options={[
          ['cron', 'cron pattern'],
          ['every', 'every so many seconds'],
        ]}
        onInput={(rule) => set({ rule: rule === 'every' ? 'every' : 'cron' })}
      />
      {draft.rule === 'cron' ? (
        <>
          <TextField
            label="Cron pattern"
            value={draft.cron}
            help="Minute, hour, day, month, day of the week"
            error={errorOf('cron')}
            onInput={(cron) => set({ cron })}
          />
          <TextField
            label="Time zone"
            value={draft.tz}
            placeholder="UTC"
            error={errorOf('tz')}
            onInput={(tz) => set({ tz })}
          />
        </>
      ) : (
        <TextField
          label="Seconds"
          type="number"
          value={draft.every}
          error={errorOf('every_seconds')}
          onInput={(every) => set({ every })}
        />
      )}
      <div class="row">
        <Button kind="small" onClick={preview} disabled={!draft.type || !dryRuns.value}>
          Show the next ten
        </Button>
        {about && <span class="failure">{about}</span>}
      </div>
      {next && <Instants at={next} />}
      <TextField
        label="Not before"
        value={draft.starts}
        error={errorOf('starts_at')}
        onInput={(starts) => set({ starts })}
      />
      <TextField
        label="Not after"
        value={draft.ends}
        error={errorOf('ends_at')}
        onInput={(ends) => set({ ends })}
      />
      <SelectField
        label="Missed occurrences"
        value={draft.missed}
        options={[
          ['one', 'one job for all'],
          ['skip', 'no job'],
          ['all', 'a job for each'],
        ]}
        onInput={(missed) => set({ missed })}
      />
      <TextField
        label="Jobs expire after seconds"
        type="number"
        value={draft.expires}
        error={errorOf('expires_after_seconds')}
        onInput={(expires) => set({ expires })}
      />
      <AreaField
        label="Data of the jobs (JSON)"
        value={draft.data}
        error={wrong ?? errorOf('data')}
        onInput={(data) => set({ data })}
      />
    </Confirm>
  );
}
