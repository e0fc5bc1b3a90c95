// "What if": the last hour's recorded trace, run again with other settings.

import { useState } from 'preact/hooks';
import { ApiError, path, send } from '../api/client';
import type { Simulated } from '../api/types';
import { type JsonObject, mergePatch } from '../lib/diff';
import { Outcome } from '../queue/outcome';
import { Control } from '../settings/controls';
import { draftFault, draftOf, QUEUE, settingsOf } from '../settings/specs';
import { useNames } from '../state/names';
import { Button } from '../ui/basics';
import { Fault } from '../ui/dialog';
import { SelectField, TextField } from '../ui/fields';

const SPANS: [string, string][] = [
  ['900', 'the last 15 minutes'],
  ['1800', 'the last 30 minutes'],
  ['3600', 'the last hour'],
];
const SPECS = QUEUE.filter((spec) => spec.name !== 'partition_by' && spec.name !== 'strict_order');

/** The form, and the pictures side by side. `onApply` gets the settings that were tried. */
export function WhatIf({
  queue,
  settings,
  onApply,
}: {
  queue: string;
  settings: JsonObject;
  onApply: (settings: JsonObject) => void;
}) {
  const [draft, setDraft] = useState(() => draftOf(settings, SPECS));
  const [over, setOver] = useState('3600');
  const [by, setBy] = useState('type');
  const [version, setVersion] = useState('');
  const [workers, setWorkers] = useState('');
  const [found, setFound] = useState<{ run: Simulated; workers: number | null } | null>(null);
  const [error, setError] = useState<unknown>(null);
  const names = useNames().data;
  const fault = draftFault(draft);
  const known = Object.fromEntries(SPECS.map(({ name }) => [name, settings[name] ?? null]));
  const errorOf = (name: string): string | undefined => {
    if (fault?.field === name) return fault.message;
    const at = error instanceof ApiError ? error.field.replace(/^queue\./, '') : '';
    return error instanceof ApiError && at === name ? error.message : undefined;
  };
  const run = async () => {
    setError(null);
    const body = {
      over_seconds: Number(over),
      queue: mergePatch(known, settingsOf(draft, SPECS)),
      by: by === 'type' ? 'type' : `attribute.${by}`,
      ...(version ? { throttler_version: Number(version) } : {}),
      ...(workers ? { workers: Number(workers) } : {}),
    } as { workers?: number };
    try {
      const { value } = await send<Simulated>('POST', path`v1/queues/${queue}/simulate`, { body });
      setFound({ run: value, workers: body.workers ?? null });
    } catch (failed) {
      setFound(null);
      setError(failed);
    }
  };
  const groups: [string, string][] = [
    ['type', 'type'],
    ...(names?.attributes ?? []).map((name): [string, string] => [name, name]),
  ];
  return (
    <>
      <p class="soft">
        The jobs that the queue had are run again in a simulation, with the limits below in place of
        the present ones. Nothing real is changed.
      </p>
      <div class="fields">
        <SelectField label="Jobs of" value={over} options={SPANS} onInput={setOver} />
        <SelectField label="Groups by" value={by} options={groups} onInput={setBy} />
        <TextField
          label="Version of the throttler"
          type="number"
          value={version}
          placeholder="the live one"
          onInput={setVersion}
        />
        <TextField
          label="Jobs at once at the workers"
          type="number"
          value={workers}
          placeholder="as recorded"
          onInput={setWorkers}
        />
        {SPECS.map((spec) => (
          <Control
            key={spec.name}
            spec={spec}
            draft={draft}
            onChange={setDraft}
            errorOf={errorOf}
            names={names}
          />
        ))}
      </div>
      <div class="row">
        <Button kind="primary" onClick={run} disabled={Boolean(fault)}>
          Simulate
        </Button>
        {found && (
          <button type="button" onClick={() => onApply(settingsOf(draft, SPECS))}>
            Apply these settings …
          </button>
        )}
      </div>
      <Fault error={error} />
      {found && <Outcome found={found.run} workers={found.workers} />}
    </>
  );
}
