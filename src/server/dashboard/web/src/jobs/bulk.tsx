// Bulk actions: always a dry run first, whose counts the user confirms, and then the progress.

import { useEffect, useState } from 'preact/hooks';
import { message, post, send, serverNow } from '../api/client';
import type { Operation } from '../api/types';
import { type FilterBody, resolve } from '../lib/filter';
import { count, plural } from '../lib/format';
import { keyed } from '../lib/keys';
import { finished, followOperation } from '../shell/operations';
import { Confirm } from '../ui/dialog';
import { CheckField, TextField } from '../ui/fields';
import { type Window, WindowsField } from '../ui/windows';

/** What can be done to many jobs. */
export type Verb = 'replay' | 'cancel' | 'now' | 'reschedule' | 'priority' | 'windows';

/** The verbs with their names on buttons, in order. */
export const VERBS: readonly [Verb, string][] = [
  ['replay', 'Replay'],
  ['now', 'Run now'],
  ['reschedule', 'Reschedule'],
  ['priority', 'Set priority'],
  ['windows', 'Set windows'],
  ['cancel', 'Cancel'],
];

const DONE: Record<Verb, string> = {
  replay: 'replayed as new jobs',
  cancel: 'cancelled',
  now: 'due now',
  reschedule: 'rescheduled',
  priority: 'changed',
  windows: 'changed',
};

interface Settings {
  again: boolean;
  at: string;
  priority: string;
  windows: Window[];
}

/** The route and the body of a bulk request. */
export function bulkRequest(
  verb: Verb,
  filter: FilterBody,
  settings: Settings,
  dryRun: boolean,
): [string, object] {
  const which = Object.keys(filter).length ? { filter } : { all: true };
  const base = { ...which, dry_run: dryRun };
  if (verb === 'cancel') return ['v1/jobs/cancel', base];
  if (verb === 'replay') return ['v1/jobs/replay', { ...base, again: settings.again }];
  const patches = {
    now: { run_at: null },
    reschedule: { run_at: resolve(settings.at, serverNow()) },
    priority: { priority: settings.priority.trim() === '' ? null : Number(settings.priority) },
    windows: { windows: settings.windows },
  };
  return ['v1/jobs/patch', { ...base, patch: patches[verb] }];
}

/** The dialog of a bulk action on a filter, which is that of the view or the ids of a selection. */
export function BulkDialog(props: {
  verb: Verb;
  filter: FilterBody;
  which: string;
  onClose: () => void;
  onDone: () => void;
}) {
  const { verb, filter, which } = props;
  const [settings, setSettings] = useState<Settings>({
    again: false,
    at: '+1h',
    priority: '',
    windows: [],
  });
  const [preview, setPreview] = useState<Operation | null>(null);
  const [wrong, setWrong] = useState('');
  const [keyOf] = useState(keyed);
  const key = JSON.stringify(settings);

  useEffect(() => {
    let current = true;
    setPreview(null);
    setWrong('');
    const timer = setTimeout(async () => {
      try {
        const [to, body] = bulkRequest(verb, filter, settings, true);
        const { operation } = await post<{ operation: Operation }>(to, body);
        const counted = await finished(operation);
        if (current) setPreview(counted);
      } catch (error) {
        if (current) setWrong(message(error));
      }
    }, 200);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [key]);

  const title = VERBS.find(([one]) => one === verb)?.[1] ?? verb;
  const work = async () => {
    const [to, body] = bulkRequest(verb, filter, settings, false);
    const options = { body, key: keyOf(JSON.stringify(body)) };
    const { operation } = (await send<{ operation: Operation }>('POST', to, options)).value;
    followOperation(operation, `${title}: ${which}`);
    props.onDone();
  };
  const ready = preview?.state === 'done' && preview.done > 0;
  return (
    <Confirm
      title={`${title}: ${which}`}
      verb={ready ? `${title}: ${plural(preview.done, 'job')}` : title}
      danger={verb === 'cancel'}
      disabled={!ready}
      onClose={props.onClose}
      work={work}
    >
      <Form verb={verb} settings={settings} onChange={setSettings} />
      {wrong ? (
        <p class="failure" role="alert">
          {wrong}
        </p>
      ) : (
        <Counted verb={verb} operation={preview} />
      )}
    </Confirm>
  );
}

function Form({
  verb,
  settings,
  onChange,
}: {
  verb: Verb;
  settings: Settings;
  onChange: (settings: Settings) => void;
}) {
  if (verb === 'replay') {
    return (
      <CheckField
        label="Also jobs that were replayed before"
        checked={settings.again}
        onChange={(again) => onChange({ ...settings, again })}
      />
    );
  }
  if (verb === 'reschedule') {
    return (
      <TextField
        label="New due time"
        value={settings.at}
        help="+1h counts from now; 2026-01-31 08:00 is UTC"
        onInput={(at) => onChange({ ...settings, at })}
      />
    );
  }
  if (verb === 'priority') {
    return (
      <TextField
        label="Priority"
        type="number"
        value={settings.priority}
        help="Lower starts first. Empty: that of the type"
        onInput={(priority) => onChange({ ...settings, priority })}
      />
    );
  }
  if (verb === 'windows')
    return (
      <WindowsField
        value={settings.windows}
        onChange={(windows) => onChange({ ...settings, windows })}
      />
    );
  return null;
}

function Counted({ verb, operation }: { verb: Verb; operation: Operation | null }) {
  if (!operation) return <p role="status">Counting, nothing is changed yet …</p>;
  if (operation.error) return <p class="failure">{operation.error}</p>;
  const { matched, done, refused, skipped, sample } = operation;
  return (
    <div role="status" class="counted">
      <p>
        <strong>{plural(done, 'job')}</strong> of {count(matched)} that match will be {DONE[verb]}.
        {refused > 0 && ` ${plural(refused, 'job')} cannot: they run or have ended.`}
        {(skipped ?? 0) > 0 &&
          ` ${plural(skipped ?? 0, 'job')} skipped: replayed before, or a live job has their key.`}
      </p>
      {Boolean(sample?.length) && (
        <p class="soft">
          Such as {sample?.slice(0, 5).join(', ')}
          {done > 5 ? ', …' : ''}
        </p>
      )}
    </div>
  );
}
