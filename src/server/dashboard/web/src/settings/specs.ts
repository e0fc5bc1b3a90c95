// The settings of queues and job types, as fields of forms.

import { isObject, type Json, type JsonObject } from '../lib/diff';
import { fault } from '../lib/json';

/** How a setting is edited. */
export type Kind =
  | 'number'
  | 'text'
  | 'flag'
  | 'words'
  | 'json'
  | 'constraints'
  | 'throttler'
  | 'windows';

/** A setting. */
export interface Spec {
  name: string;
  label: string;
  kind: Kind;
  options?: readonly string[];
  help?: string;
  /** What of the server's names completes the field. */
  list?: 'queues' | 'plugins';
}

/** The settings of a queue. */
export const QUEUE: readonly Spec[] = [
  {
    name: 'concurrency',
    label: 'Concurrency',
    kind: 'number',
    help: 'Most weight that runs at once. Empty: unlimited. 0 admits nothing',
  },
  { name: 'order', label: 'Order', kind: 'words', options: ['time', 'priority'] },
  {
    name: 'order_step_seconds',
    label: 'Order step, seconds',
    kind: 'number',
    help: 'Due times within a step count as equal; 0 is exact',
  },
  {
    name: 'ageing_seconds',
    label: 'Ageing, seconds',
    kind: 'number',
    help: 'This long a wait counts as one step of priority',
  },
  { name: 'partition_by', label: 'Partition by attribute', kind: 'text' },
  { name: 'strict_order', label: 'Strict order within a partition', kind: 'flag' },
  { name: 'constraints', label: 'Constraints', kind: 'constraints' },
  { name: 'throttler', label: 'Throttler', kind: 'throttler' },
  {
    name: 'plugin_calls',
    label: 'Recorded calls of plugins (JSON)',
    kind: 'json',
    help: 'What their records lack: {"redact": ["data", "attributes.email"]}',
  },
];

/** The settings of a job type. */
export const TYPE: readonly Spec[] = [
  { name: 'queue', label: 'Queue', kind: 'text', list: 'queues' },
  {
    name: 'concurrency',
    label: 'Concurrency of the type',
    kind: 'number',
    help: 'Empty: only the limits of the queue',
  },
  {
    name: 'max_attempts',
    label: 'Attempts',
    kind: 'number',
    help: 'Empty: 3, or 1 with at most once',
  },
  { name: 'priority', label: 'Priority', kind: 'number', help: 'Lower starts first' },
  { name: 'weight', label: 'Weight', kind: 'number' },
  {
    name: 'timeout_seconds',
    label: 'Timeout, seconds',
    kind: 'number',
    help: 'From claim to result',
  },
  { name: 'lease_seconds', label: 'Lease, seconds', kind: 'number', help: 'Without a heartbeat' },
  {
    name: 'response_timeout_seconds',
    label: 'Response timeout, seconds',
    kind: 'number',
    help: 'Of a push',
  },
  {
    name: 'deadline_seconds',
    label: 'Deadline, seconds',
    kind: 'number',
    help: 'From creation to end',
  },
  {
    name: 'retention_seconds',
    label: 'Retention, seconds',
    kind: 'number',
    help: 'How long an ended job is kept',
  },
  { name: 'max_releases', label: 'Releases in a row', kind: 'number' },
  {
    name: 'delivery',
    label: 'Delivery',
    kind: 'words',
    options: ['at_least_once', 'at_most_once'],
  },
  { name: 'hold_slot_until', label: 'Slot is held until', kind: 'text' },
  {
    name: 'on_response_timeout',
    label: 'On response timeout',
    kind: 'words',
    options: ['fail', 'wait'],
  },
  { name: 'callback_url', label: 'Callback URL', kind: 'text' },
  { name: 'windows', label: 'Windows', kind: 'windows' },
  { name: 'retry', label: 'Retry (JSON)', kind: 'json' },
  { name: 'target', label: 'Target (JSON)', kind: 'json' },
  { name: 'attributes', label: 'Attributes by JSON pointer (JSON)', kind: 'json' },
  { name: 'headers', label: 'Headers (JSON)', kind: 'json' },
  { name: 'keep_result', label: 'Keep the result (JSON)', kind: 'json' },
];

/** The settings as a form edits them: JSON as text, everything else as it is. */
export interface Draft {
  values: JsonObject;
  texts: Record<string, string>;
}

/** The draft that shows settings as they are. */
export function draftOf(settings: JsonObject, specs: readonly Spec[]): Draft {
  const values: JsonObject = {};
  const texts: Record<string, string> = {};
  for (const { name, kind } of specs) {
    const value = settings[name] ?? null;
    values[name] = value;
    if (kind === 'json') texts[name] = value === null ? '' : JSON.stringify(value, null, 2);
    if (kind === 'throttler')
      texts[name] = JSON.stringify((isObject(value) && value.config) || {}, null, 2);
  }
  for (const [at, constraint] of constraintsOf(values).entries()) {
    texts[`constraints[${at}].match`] = JSON.stringify(constraint.match ?? {});
  }
  return { values, texts };
}

/** The constraints of a draft as objects. */
export function constraintsOf(values: JsonObject): JsonObject[] {
  const list = values.constraints;
  return Array.isArray(list) ? list.filter(isObject) : [];
}

/** The first JSON text of the draft that cannot be read: its field, and what is wrong. */
export function draftFault(draft: Draft): { field: string; message: string } | null {
  for (const [field, text] of Object.entries(draft.texts)) {
    const wrong = text.trim() ? fault(text) : null;
    if (wrong) return { field, message: wrong };
  }
  return null;
}

const parsed = (text: string | undefined): Json =>
  text?.trim() ? (JSON.parse(text) as Json) : null;

/** The settings that a draft without faults describes. */
export function settingsOf(draft: Draft, specs: readonly Spec[]): JsonObject {
  const settings: JsonObject = {};
  for (const { name, kind } of specs) {
    const value = draft.values[name] ?? null;
    if (kind === 'json') settings[name] = parsed(draft.texts[name]);
    else if (kind === 'throttler') {
      settings[name] =
        isObject(value) && value.plugin
          ? { ...value, config: parsed(draft.texts[name]) ?? {} }
          : null;
    } else if (kind === 'constraints') {
      settings[name] = constraintsOf(draft.values).map((constraint, at) => ({
        ...constraint,
        match: parsed(draft.texts[`constraints[${at}].match`]) ?? {},
      }));
    } else settings[name] = value;
  }
  return settings;
}
