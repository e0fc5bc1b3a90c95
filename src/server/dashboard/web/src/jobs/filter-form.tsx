// The filter as a form. Nothing applies before it is submitted; then it is in the address.

import { useEffect, useState } from 'preact/hooks';
import { FIELDS, type Field, named, REASONS } from '../lib/filter';
import { useNames } from '../state/names';
import { TextField } from '../ui/fields';

type Pair = [string, string];

interface Draft {
  values: Record<string, string>;
  attributes: Pair[];
  data: Pair[];
}

function draftOf(query: URLSearchParams): Draft {
  const values = Object.fromEntries(FIELDS.map(({ name }) => [name, query.get(name) ?? '']));
  return { values, attributes: named(query, 'attribute'), data: named(query, 'data') };
}

function queryOf(draft: Draft, before: URLSearchParams): URLSearchParams {
  const query = new URLSearchParams();
  for (const name of ['phase', 'sort']) {
    const value = before.get(name);
    if (value) query.set(name, value);
  }
  for (const [name, value] of Object.entries(draft.values))
    if (value.trim()) query.set(name, value.trim());
  for (const [name, value] of draft.attributes)
    if (name && value) query.set(`attribute[${name}]`, value);
  for (const [name, value] of draft.data) if (name && value) query.set(`data[${name}]`, value);
  return query;
}

/** Fields that a first look needs; the others are behind "More conditions". */
const FIRST = ['type', 'queue', 'id', 'error_contains'];

/** The form. */
export function FilterForm(props: {
  query: URLSearchParams;
  attributes: string[];
  onApply: (query: URLSearchParams) => void;
}) {
  const { query, onApply } = props;
  const [draft, setDraft] = useState(() => draftOf(query));
  const [more, setMore] = useState(false);
  const names = useNames().data;
  const text = query.toString();
  useEffect(() => setDraft(draftOf(query)), [text]);

  const lists: Record<string, string[] | undefined> = {
    type: names?.types,
    queue: names?.queues,
    worker: names?.workers,
    error_reason: [...REASONS],
  };
  const hint = (field: Field) =>
    field.kind === 'time'
      ? { placeholder: '-24h or 2026-01-31 08:00' }
      : field.hint
        ? { placeholder: field.hint }
        : {};
  const input = (field: Field) => (
    <TextField
      key={field.name}
      label={field.label}
      value={draft.values[field.name] ?? ''}
      list={lists[field.name] ?? []}
      {...hint(field)}
      onInput={(value) => setDraft({ ...draft, values: { ...draft.values, [field.name]: value } })}
    />
  );
  const known = [...new Set([...(names?.attributes ?? []), ...props.attributes])];
  const used =
    FIELDS.some(({ name }) => !FIRST.includes(name) && draft.values[name]) || draft.data.length > 0;
  return (
    <form
      class="filter"
      aria-label="Filter"
      onSubmit={(event) => {
        event.preventDefault();
        onApply(queryOf(draft, query));
      }}
    >
      <div class="fields">
        {FIELDS.filter((field) => FIRST.includes(field.name)).map(input)}
        <Pairs
          label="Attribute"
          pairs={draft.attributes}
          names={known}
          onChange={(attributes) => setDraft({ ...draft, attributes })}
        />
        {(more || used) && (
          <>
            {FIELDS.filter((field) => !FIRST.includes(field.name)).map(input)}
            <Pairs
              label="Data, by pointer"
              pairs={draft.data}
              names={[]}
              onChange={(data) => setDraft({ ...draft, data })}
            />
          </>
        )}
      </div>
      <div class="row">
        <button type="submit" class="primary">
          Apply
        </button>
        <button type="button" onClick={() => onApply(new URLSearchParams())}>
          Clear
        </button>
        {!used && (
          <button type="button" class="quiet" aria-expanded={more} onClick={() => setMore(!more)}>
            {more ? 'Fewer conditions' : 'More conditions'}
          </button>
        )}
        {(more || used) && (
          <span class="soft">
            Times without a zone are UTC; -24h counts from the moment of each read.
          </span>
        )}
      </div>
    </form>
  );
}

function Pairs(props: {
  label: string;
  pairs: Pair[];
  names: string[];
  onChange: (pairs: Pair[]) => void;
}) {
  const { label, pairs, onChange } = props;
  const shown: Pair[] = pairs.length ? pairs : [['', '']];
  const change = (at: number, pair: Pair) =>
    onChange(shown.map((one, i) => (i === at ? pair : one)));
  return (
    <div class="pairs">
      {shown.map(([name, value], at) => (
        <div class="pair" key={at}>
          <TextField
            label={label}
            value={name}
            list={props.names}
            onInput={(text) => change(at, [text, value])}
          />
          <TextField label="Value" value={value} onInput={(text) => change(at, [name, text])} />
        </div>
      ))}
      <button type="button" class="small quiet" onClick={() => onChange([...shown, ['', '']])}>
        Add another
      </button>
    </div>
  );
}
