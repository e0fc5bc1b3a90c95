// The parts around the list of jobs: conditions, tabs, actions, columns, pages.

import { serverless } from '../api/session';
import type { JobPage } from '../api/types';
import { VERBS, type Verb } from '../jobs/bulk';
import { COLUMNS } from '../jobs/columns';
import type { Counts } from '../jobs/list';
import { chips, PHASES } from '../lib/filter';
import { count } from '../lib/format';
import { href } from '../lib/route';
import { columns, PAGE_SIZES, pageSize } from '../state/prefs';
import { Menu } from '../ui/menu';

/** A query without some parameters. */
export function without(query: URLSearchParams, ...names: string[]): URLSearchParams {
  const rest = new URLSearchParams(query);
  for (const name of names) rest.delete(name);
  return rest;
}

/** The conditions, each with a link that removes it. */
export function Chips({ query }: { query: URLSearchParams }) {
  const found = chips(query);
  if (!found.length) return null;
  return (
    <ul class="chips" aria-label="Conditions">
      {found.map(({ text, without: rest }) => (
        <li key={text}>
          <bdi>{text}</bdi>
          <a href={href(['jobs'], rest)} aria-label={`Remove the condition ${text}`}>
            ✕
          </a>
        </li>
      ))}
    </ul>
  );
}

/** The phases with their counts. */
export function Tabs({ query, counts }: { query: URLSearchParams; counts: Counts | null }) {
  const shown = query.get('phase') ?? '';
  const rest = without(query, 'phase', 'cursor');
  const tab = (phase: string) => {
    const next = new URLSearchParams(rest);
    if (phase) next.set('phase', phase);
    const found = counts?.[phase];
    return (
      <a
        key={phase}
        href={href(['jobs'], next)}
        aria-current={shown === phase ? 'page' : undefined}
      >
        {phase || 'all'}
        {found && (
          <span class="count">
            {count(found.jobs)}
            {found.more ? '+' : ''}
          </span>
        )}
      </a>
    );
  };
  return (
    <nav class="tabs" aria-label="Phases">
      {['', ...PHASES].map(tab)}
    </nav>
  );
}

/** The bulk actions. */
export function Actions(props: {
  selected: number;
  onVerb: (verb: Verb) => void;
  onNone: () => void;
}) {
  return (
    <fieldset class="actions">
      <legend class="soft">
        {props.selected ? `${count(props.selected)} selected:` : 'All that match:'}
      </legend>
      {VERBS.map(([verb, title]) => (
        <button key={verb} type="button" class="small" onClick={() => props.onVerb(verb)}>
          {title} …
        </button>
      ))}
      {props.selected > 0 && (
        <button type="button" class="small quiet" onClick={props.onNone}>
          Select none
        </button>
      )}
    </fieldset>
  );
}

/** Which columns are shown. */
export function ColumnChoice() {
  const toggle = (id: string) => {
    columns.value = columns.value.includes(id)
      ? columns.value.filter((one) => one !== id)
      : [...columns.value, id];
  };
  return (
    <Menu title="Columns">
      {() =>
        COLUMNS.map(({ id, label }) => (
          <label key={id} class="check">
            <input
              type="checkbox"
              checked={columns.value.includes(id)}
              onChange={() => toggle(id)}
            />
            {label}
          </label>
        ))
      }
    </Menu>
  );
}

/** The order of the list, in words. */
function orderOf(sort: string | null, compared: JobPage['sorted']): string {
  if (!sort) return serverless.value ? 'by due time' : 'newest first';
  if (!compared || compared.complete) return 'all that match are sorted';
  return `sorted among ${count(compared.compared)} of those that match: add conditions`;
}

/** Links to other pages, and what the order is. */
export function Pages(props: {
  query: URLSearchParams;
  next: string | null;
  rows: number;
  unreadable: string[];
  sorted: JobPage['sorted'];
}) {
  const { query, next } = props;
  const to = (cursor: string | null) => {
    const target = without(query, 'cursor');
    if (cursor) target.set('cursor', cursor);
    return href(['jobs'], target);
  };
  const later = query.has('cursor');
  return (
    <div class="pages">
      {later && <a href={to(null)}>First page</a>}
      {later && (
        <button type="button" class="small" onClick={() => history.back()}>
          Back
        </button>
      )}
      {next && <a href={to(next)}>Next page</a>}
      <label class="row">
        a page
        <select
          value={String(pageSize.value)}
          onChange={(event) => {
            pageSize.value = Number(event.currentTarget.value);
          }}
        >
          {PAGE_SIZES.map((size) => (
            <option key={size} value={String(size)}>
              {size}
            </option>
          ))}
        </select>
      </label>
      <span class="soft">
        {count(props.rows)} shown, {orderOf(query.get('sort'), props.sorted)}.
      </span>
      {props.unreadable.length > 0 && (
        <span class="failure">Cannot be read: {props.unreadable.join(', ')}</span>
      )}
    </div>
  );
}
