// Enqueueing a job by hand.

import { useState } from 'preact/hooks';
import { ApiError, send, serverNow } from '../api/client';
import { may } from '../api/session';
import type { Job } from '../api/types';
import { resolve } from '../lib/filter';
import { fault, withRaw } from '../lib/json';
import { keyed } from '../lib/keys';
import { jobHref } from '../lib/route';
import { useNames } from '../state/names';
import { go } from '../state/router';
import { Confirm } from '../ui/dialog';
import { AreaField, CheckField, TextField } from '../ui/fields';

interface Draft {
  type: string;
  id: string;
  data: string;
  at: string;
  priority: string;
  attributes: string;
  key: string;
  critical: boolean;
}

/** The body of `POST /v1/jobs`. The data keep the text that the user wrote. */
export function enqueueBody(draft: Draft, now: number): string {
  const { type, id, at, priority, attributes, key, critical } = draft;
  const fields = {
    type,
    ...(id ? { id } : {}),
    ...(at ? { run_at: resolve(at, now) } : {}),
    ...(priority ? { priority: Number(priority) } : {}),
    ...(key ? { correlation_key: key } : {}),
    ...(critical ? { critical } : {}),
  };
  return withRaw(fields, {
    data: draft.data.trim() || 'null',
    ...(attributes.trim() ? { attributes } : {}),
  });
}

/** The dialog. The job that it makes is opened. */
export function EnqueueDialog({ type = '', onClose }: { type?: string; onClose: () => void }) {
  const names = useNames().data;
  const [draft, setDraft] = useState<Draft>({
    type,
    id: '',
    data: '{}',
    at: '',
    priority: '',
    attributes: '',
    key: '',
    critical: false,
  });
  const [field, setField] = useState<[string, string]>(['', '']);
  const [keyOf] = useState(keyed);
  const set = (part: Partial<Draft>) => setDraft({ ...draft, ...part });
  const errorOf = (name: string) => (field[0] === name ? field[1] : undefined);
  const data = fault(draft.data || 'null') ?? undefined;
  const attributes = draft.attributes ? (fault(draft.attributes) ?? undefined) : undefined;
  const work = async () => {
    try {
      const raw = enqueueBody(draft, serverNow());
      const { value } = await send<Job>('POST', 'v1/jobs', { raw, key: keyOf(raw) });
      go(jobHref(value.type, value.id));
    } catch (error) {
      if (error instanceof ApiError) setField([error.field, error.message]);
      throw error;
    }
  };
  return (
    <Confirm
      title="Enqueue a job"
      verb="Enqueue"
      onClose={onClose}
      work={work}
      disabled={!draft.type || Boolean(data || attributes)}
    >
      <TextField
        label="Type"
        value={draft.type}
        list={names?.types ?? []}
        error={errorOf('type')}
        onInput={(value) => set({ type: value })}
      />
      <AreaField
        label="Data (JSON)"
        value={draft.data}
        error={data ?? errorOf('data')}
        onInput={(value) => set({ data: value })}
      />
      <TextField
        label="Due"
        value={draft.at}
        placeholder="now"
        help="+10m, or 2026-01-31 08:00 in UTC"
        error={errorOf('run_at')}
        onInput={(at) => set({ at })}
      />
      <TextField
        label="Id"
        value={draft.id}
        placeholder="made by the server"
        error={errorOf('id')}
        onInput={(id) => set({ id })}
      />
      <TextField
        label="Priority"
        type="number"
        value={draft.priority}
        placeholder="of the type"
        error={errorOf('priority')}
        onInput={(priority) => set({ priority })}
      />
      <AreaField
        label="Attributes (JSON)"
        rows={2}
        value={draft.attributes}
        error={attributes ?? errorOf('attributes')}
        onInput={(value) => set({ attributes: value })}
      />
      <TextField
        label="Correlation key"
        value={draft.key}
        error={errorOf('correlation_key')}
        onInput={(key) => set({ key })}
      />
      {may('enqueue:critical') && (
        <CheckField
          label="Critical: exempt from limits"
          checked={draft.critical}
          onChange={(critical) => set({ critical })}
        />
      )}
    </Confirm>
  );
}
