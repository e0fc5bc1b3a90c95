// What can be done to one job: change it, replay it with changes, cancel it.

import { useState } from 'preact/hooks';
import { ApiError, path, send, serverNow } from '../api/client';
import type { Job } from '../api/types';
import { resolve } from '../lib/filter';
import { fault, pretty, withRaw } from '../lib/json';
import { keyed } from '../lib/keys';
import { jobHref } from '../lib/route';
import { notify } from '../state/notices';
import { go } from '../state/router';
import { Confirm } from '../ui/dialog';
import { AreaField, CheckField, TextField } from '../ui/fields';
import { type Window, WindowsField } from '../ui/windows';

/** What the dialogs need of a job: itself, its data as text, and its version. */
export interface Subject {
  job: Job;
  data: string | null;
  etag: string | null;
}

interface Props extends Subject {
  onClose: () => void;
  onDone: () => void;
}

const at = (job: Job): string => path`v1/jobs/${job.type}/${job.id}`;

/** Catches the field of an error for the form, and passes the error on. */
function useFieldErrors(): [(name: string) => string | undefined, (error: unknown) => never] {
  const [field, setField] = useState<[string, string]>(['', '']);
  const take = (error: unknown): never => {
    if (error instanceof ApiError) setField([error.field, error.message]);
    throw error;
  };
  return [(name) => (field[0] === name ? field[1] : undefined), take];
}

/** Changes a scheduled job. Only what differs is sent, and only if nothing has changed it meanwhile. */
export function EditDialog({ onClose, onDone, ...subject }: Props) {
  // The job may change while it is edited. The change is then refused, and not based on a mixture.
  const [{ job, data, etag }] = useState(subject);
  const before = pretty(data ?? 'null');
  const [due, setDue] = useState(job.run_at);
  const [priority, setPriority] = useState(String(job.priority));
  const [expires, setExpires] = useState(job.expires_at ?? '');
  const [windows, setWindows] = useState<Window[]>(job.windows ?? []);
  const [text, setText] = useState(before);
  const [errorOf, take] = useFieldErrors();
  const wrong = fault(text) ?? undefined;
  const work = async () => {
    const now = serverNow();
    const changed = {
      ...(due !== job.run_at ? { run_at: due.trim() ? resolve(due, now) : null } : {}),
      ...(priority !== String(job.priority)
        ? { priority: priority.trim() ? Number(priority) : null }
        : {}),
      ...(expires !== (job.expires_at ?? '')
        ? { expires_at: expires.trim() ? resolve(expires, now) : null }
        : {}),
      ...(JSON.stringify(windows) !== JSON.stringify(job.windows ?? []) ? { windows } : {}),
    };
    const raw = withRaw(changed, text !== before ? { data: text } : {});
    await send('PATCH', at(job), { raw, etag }).catch(take);
    notify('done', 'The job is changed.');
    onDone();
  };
  return (
    <Confirm
      title={`Edit ${job.id}`}
      verb="Change the job"
      onClose={onClose}
      work={work}
      disabled={Boolean(wrong)}
    >
      <TextField
        label="Due"
        value={due}
        error={errorOf('run_at')}
        help="Empty: now. +10m counts from now"
        onInput={setDue}
      />
      <TextField
        label="Priority"
        type="number"
        value={priority}
        error={errorOf('priority')}
        help="Empty: that of the type"
        onInput={setPriority}
      />
      <TextField
        label="Expires"
        value={expires}
        error={errorOf('expires_at')}
        help="It never starts after this. Empty: never"
        onInput={setExpires}
      />
      {data !== null && (
        <AreaField
          label="Data (JSON)"
          rows={8}
          value={text}
          error={wrong ?? errorOf('data')}
          onInput={setText}
        />
      )}
      <WindowsField value={windows} onChange={setWindows} errorOf={errorOf} />
    </Confirm>
  );
}

/** Replays a job, as it is or with changes. */
export function ReplayDialog({ job, data, onClose }: Props) {
  const before = pretty(data ?? 'null');
  const [edit, setEdit] = useState(false);
  const [again, setAgain] = useState(Boolean(job.replayed_by));
  const [text, setText] = useState(before);
  const [priority, setPriority] = useState(String(job.priority));
  const [errorOf, take] = useFieldErrors();
  const [keyOf] = useState(keyed);
  const wrong = fault(text) ?? undefined;
  const work = async () => {
    const fields = {
      again,
      ...(edit && priority !== String(job.priority)
        ? { priority: priority.trim() ? Number(priority) : null }
        : {}),
    };
    const raw = withRaw(fields, edit && text !== before ? { data: text } : {});
    const key = keyOf(raw);
    const { value } = await send<Job>('POST', `${at(job)}/replay`, { raw, key }).catch(take);
    notify('done', 'A new job replays it.');
    go(jobHref(value.type, value.id));
  };
  return (
    <Confirm
      title={`Replay ${job.id}`}
      verb="Replay as a new job"
      onClose={onClose}
      work={work}
      disabled={Boolean(wrong)}
    >
      <p>
        The job stays as it is. A new one with the same type, data and options runs, and links back
        to it.
      </p>
      {job.replayed_by && (
        <CheckField
          label="Replay it once more"
          help={`${job.replayed_by} replayed it before.`}
          checked={again}
          onChange={setAgain}
        />
      )}
      <CheckField label="Edit before the retry" checked={edit} onChange={setEdit} />
      {edit && (
        <>
          {data !== null && (
            <AreaField
              label="Data (JSON)"
              rows={10}
              value={text}
              error={wrong ?? errorOf('data')}
              onInput={setText}
            />
          )}
          <TextField
            label="Priority"
            type="number"
            value={priority}
            error={errorOf('priority')}
            onInput={setPriority}
          />
        </>
      )}
    </Confirm>
  );
}

/** Cancels a job: in order, or at once. */
export function CancelDialog({ job, onClose, onDone }: Props) {
  const runs = job.state === 'running';
  const [force, setForce] = useState(false);
  const work = async () => {
    await send('DELETE', at(job), { query: force ? { force: 'true' } : {} });
    notify(
      'done',
      runs && !force
        ? 'The worker gets the cancel request at its next heartbeat.'
        : 'The job is cancelled.',
    );
    onDone();
  };
  return (
    <Confirm
      title={`Cancel ${job.id}?`}
      verb={force ? 'Cancel at once' : 'Cancel the job'}
      danger
      onClose={onClose}
      work={work}
    >
      <p>
        {runs
          ? 'Its worker gets the cancel request, and reports the end itself.'
          : 'It will never run. A cancel cannot be undone; a replay makes a new job.'}
      </p>
      {runs && (
        <CheckField
          label="At once"
          help="The job ends now. Its worker may still be at work for some time."
          checked={force}
          onChange={setForce}
        />
      )}
    </Confirm>
  );
}
