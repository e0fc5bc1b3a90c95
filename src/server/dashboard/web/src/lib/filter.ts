// The filter of jobs: its fields, and its forms in the address, in requests and in bodies.

/** How a field of the filter is entered. */
export type FieldKind = 'name' | 'words' | 'text' | 'number' | 'time';

/** A field of the filter, under its name in the API. */
export interface Field {
  name: string;
  label: string;
  kind: FieldKind;
  hint?: string;
}

/** The phases in which jobs are, in the order of a job's life. */
export const PHASES = [
  'scheduled',
  'ready',
  'retrying',
  'running',
  'succeeded',
  'failed',
  'expired',
  'cancelled',
  'dropped',
] as const;

/** The reasons of errors. */
export const REASONS = [
  'failed',
  'timeout',
  'lease_expired',
  'connection_lost',
  'not_delivered',
  'outcome_unknown',
  'deadline',
] as const;

/** Every field but the phase, which has tabs, and the attributes and data, which are lists. */
export const FIELDS: readonly Field[] = [
  { name: 'type', label: 'Type', kind: 'name' },
  { name: 'queue', label: 'Queue', kind: 'name' },
  { name: 'id', label: 'Ids', kind: 'words', hint: 'several with commas' },
  { name: 'worker', label: 'Worker', kind: 'name' },
  { name: 'error_contains', label: 'Error contains', kind: 'text' },
  { name: 'error_pattern', label: 'Error like', kind: 'text', hint: 'a message, or a pattern' },
  { name: 'error_reason', label: 'Error reason', kind: 'words' },
  { name: 'min_attempt', label: 'Attempts from', kind: 'number' },
  { name: 'max_attempt', label: 'Attempts to', kind: 'number' },
  { name: 'created_from', label: 'Created from', kind: 'time' },
  { name: 'created_to', label: 'Created before', kind: 'time' },
  { name: 'due_from', label: 'Due from', kind: 'time' },
  { name: 'due_to', label: 'Due before', kind: 'time' },
  { name: 'started_from', label: 'Started from', kind: 'time' },
  { name: 'started_to', label: 'Started before', kind: 'time' },
  { name: 'ended_from', label: 'Ended from', kind: 'time' },
  { name: 'ended_to', label: 'Ended before', kind: 'time' },
  { name: 'state', label: 'States', kind: 'words' },
];

const SINGLE = new Set(['phase', ...FIELDS.map((field) => field.name)]);
const NAMED = /^(attribute|data)(?:\[(.*)\]|\.(.*))$/s;
const SPAN = /^([+-])(\d+(?:\.\d+)?)(s|m|h|d|w)$/;
const UNITS: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 604_800 };

/** The conditions in a query, without what is no condition and without empty values. */
export function conditions(query: URLSearchParams): [string, string][] {
  return [...query].filter(
    ([name, value]) => value !== '' && (SINGLE.has(name) || NAMED.test(name)),
  );
}

/** Whether the query has a condition other than those of `except`. */
export function narrower(query: URLSearchParams, except: string[]): boolean {
  return conditions(query).some(([name]) => !except.includes(name));
}

/** An instant for the API: a span such as `-24h` counts from now, a date alone begins its day in UTC. */
export function resolve(text: string, now: number): string {
  const match = SPAN.exec(text.trim());
  if (!match) {
    const value = text.trim();
    const time = Date.parse(/[zZ]|[+-]\d\d:?\d\d$/.test(value) ? value : zoned(value));
    return Number.isNaN(time) ? value : new Date(time).toISOString();
  }
  const [, sign, amount, unit] = match;
  const seconds = Number(amount) * (UNITS[unit ?? 's'] ?? 1);
  return new Date(now + (sign === '-' ? -1 : 1) * seconds * 1000).toISOString();
}

function zoned(value: string): string {
  if (/^\d{4}-\d\d-\d\d$/.test(value)) return `${value}T00:00:00Z`;
  return `${value.replace(' ', 'T')}Z`;
}

const isTime = (name: string): boolean => /^(created|due|started|ended)_(from|to)$/.test(name);

/** The parameters of `GET /v1/jobs` for a query of the address. */
export function parameters(query: URLSearchParams, now: number): URLSearchParams {
  const params = new URLSearchParams();
  for (const [name, value] of conditions(query)) {
    params.append(name, isTime(name) ? resolve(value, now) : value);
  }
  return params;
}

/** A filter in the body of a bulk operation. */
export type FilterBody = Record<string, string | number | string[] | Record<string, string>>;

/** The body of a bulk operation with the conditions of a query. */
export function body(query: URLSearchParams, now: number): FilterBody {
  const out: FilterBody = {};
  for (const [name, value] of conditions(query)) {
    const named = NAMED.exec(name);
    if (named) {
      const map = named[1] ?? 'attribute';
      const entries = (out[map] ?? {}) as Record<string, string>;
      out[map] = { ...entries, [named[2] ?? named[3] ?? '']: value };
    } else if (name === 'phase' || FIELDS.find((field) => field.name === name)?.kind === 'words') {
      out[name] = value.split(',').map((word) => word.trim());
    } else if (/_attempt$/.test(name)) out[name] = Number(value);
    else out[name] = isTime(name) ? resolve(value, now) : value;
  }
  return out;
}

/** The named values of a query: `attribute[region]=eu` is `["region", "eu"]`. */
export function named(query: URLSearchParams, map: 'attribute' | 'data'): [string, string][] {
  const found: [string, string][] = [];
  for (const [name, value] of query) {
    const match = NAMED.exec(name);
    if (match?.[1] === map) found.push([match[2] ?? match[3] ?? '', value]);
  }
  return found;
}

/** The conditions as short texts, each with the query that is left without it. */
export function chips(query: URLSearchParams): { text: string; without: URLSearchParams }[] {
  return conditions(query)
    .filter(([name]) => name !== 'phase')
    .map(([name, value]) => {
      const without = new URLSearchParams(query);
      without.delete(name);
      without.delete('cursor');
      const match = NAMED.exec(name);
      const label = match
        ? `${match[1] === 'data' ? 'data' : ''}${match[2] ?? match[3]}`
        : (FIELDS.find((field) => field.name === name)?.label ?? name);
      return { text: `${label}: ${value}`, without };
    });
}
