// The controls of settings.

import { isObject, type Json, type JsonObject } from '../lib/diff';
import type { Names } from '../state/names';
import { AreaField, CheckField, SelectField, TextField } from '../ui/fields';
import { type Window, WindowsField } from '../ui/windows';
import { constraintsOf, type Draft, type Spec } from './specs';

/** What a control needs: the draft, how to change it, and the server's messages. */
export interface Controls {
  draft: Draft;
  onChange: (draft: Draft) => void;
  errorOf: (field: string) => string | undefined;
  names: Names | null;
}

/** A text as a number, or as null if it is empty. What is no number stays a text, for the server to refuse. */
function numeric(text: string): Json {
  if (!text.trim()) return null;
  const value = Number(text);
  return Number.isNaN(value) ? text : value;
}

const shown = (value: Json | undefined): string =>
  value === null || value === undefined ? '' : String(value);

/** The control of one setting. */
export function Control({ spec, ...all }: Controls & { spec: Spec }) {
  const { draft, onChange, errorOf, names } = all;
  const { name, label, kind, help } = spec;
  const value = draft.values[name];
  const set = (next: Json) => onChange({ ...draft, values: { ...draft.values, [name]: next } });
  const about = { label, error: errorOf(name), ...(help ? { help } : {}) };
  if (kind === 'number') {
    return (
      <TextField
        {...about}
        type="number"
        value={shown(value)}
        onInput={(text) => set(numeric(text))}
      />
    );
  }
  if (kind === 'flag') return <CheckField label={label} checked={value === true} onChange={set} />;
  if (kind === 'words') {
    return (
      <SelectField {...about} value={shown(value)} options={spec.options ?? []} onInput={set} />
    );
  }
  if (kind === 'json') {
    const text = draft.texts[name] ?? '';
    return (
      <AreaField
        {...about}
        value={text}
        rows={3}
        onInput={(next) => onChange({ ...draft, texts: { ...draft.texts, [name]: next } })}
      />
    );
  }
  if (kind === 'windows') {
    const windows = (Array.isArray(value) ? value : []) as unknown as Window[];
    return (
      <WindowsField
        value={windows}
        errorOf={errorOf}
        onChange={(next) => set(next as unknown as Json)}
      />
    );
  }
  if (kind === 'constraints') return <Constraints {...all} />;
  if (kind === 'throttler') return <ThrottlerFields {...all} />;
  const list = spec.list ? (names?.[spec.list] ?? []) : [];
  return (
    <TextField {...about} value={shown(value)} list={list} onInput={(text) => set(text || null)} />
  );
}

function Constraints({ draft, onChange, errorOf, names }: Controls) {
  const list = constraintsOf(draft.values);
  const put = (next: JsonObject[], texts = draft.texts) =>
    onChange({ values: { ...draft.values, constraints: next }, texts });
  const change = (at: number, part: JsonObject) =>
    put(list.map((one, i) => (i === at ? { ...one, ...part } : one)));
  const remove = (at: number) => {
    const matches = list
      .map((_, i) => draft.texts[`constraints[${i}].match`] ?? '{}')
      .filter((_, i) => i !== at);
    const rest = Object.entries(draft.texts).filter(([field]) => !field.startsWith('constraints['));
    const texts = Object.fromEntries([
      ...rest,
      ...matches.map((text, i): [string, string] => [`constraints[${i}].match`, text]),
    ]);
    put(
      list.filter((_, i) => i !== at),
      texts,
    );
  };
  const rate = (at: number, one: JsonObject, part: JsonObject) => {
    const next: JsonObject = { ...(isObject(one.rate) ? one.rate : {}), ...part };
    const empty = Object.values(next).every((value) => value === null || value === undefined);
    change(at, { rate: empty ? null : next });
  };
  return (
    <fieldset>
      <legend>Constraints</legend>
      {list.length === 0 && <p class="soft">No further limits.</p>}
      {list.map((one, at) => {
        const field = `constraints[${at}]`;
        const of = isObject(one.rate) ? one.rate : {};
        const number = (
          label: string,
          path: string,
          value: Json | undefined,
          to: (value: Json) => void,
        ) => (
          <TextField
            label={label}
            type="number"
            value={shown(value)}
            error={errorOf(`${field}.${path}`)}
            onInput={(text) => to(numeric(text))}
          />
        );
        return (
          <div class="item" key={at}>
            <TextField
              label="Name"
              value={shown(one.name)}
              error={errorOf(`${field}.name`) ?? errorOf(field)}
              onInput={(name) => change(at, { name })}
            />
            <TextField
              label="Per attribute"
              value={shown(one.per)}
              list={names?.attributes ?? []}
              error={errorOf(`${field}.per`)}
              onInput={(per) => change(at, { per: per || null })}
            />
            {number('Concurrency', 'concurrency', one.concurrency, (concurrency) =>
              change(at, { concurrency }),
            )}
            {number('Starts', 'rate.count', of.count, (count) => rate(at, one, { count }))}
            {number('per seconds', 'rate.per_seconds', of.per_seconds, (per_seconds) =>
              rate(at, one, { per_seconds }),
            )}
            {number('Burst', 'rate.burst', of.burst, (burst) => rate(at, one, { burst }))}
            <TextField
              label="Only jobs that match (JSON)"
              value={draft.texts[`${field}.match`] ?? '{}'}
              error={errorOf(`${field}.match`)}
              onInput={(text) =>
                onChange({ ...draft, texts: { ...draft.texts, [`${field}.match`]: text } })
              }
            />
            <button type="button" class="small" onClick={() => remove(at)}>
              Remove
            </button>
          </div>
        );
      })}
      <button
        type="button"
        class="small"
        onClick={() =>
          put([...list, { name: `limit-${list.length + 1}`, concurrency: 1 }], {
            ...draft.texts,
            [`constraints[${list.length}].match`]: '{}',
          })
        }
      >
        Add a constraint
      </button>
    </fieldset>
  );
}

function ThrottlerFields({ draft, onChange, errorOf, names }: Controls) {
  const value = isObject(draft.values.throttler) ? draft.values.throttler : null;
  const set = (throttler: JsonObject | null) =>
    onChange({ ...draft, values: { ...draft.values, throttler } });
  const plugin = shown(value?.plugin);
  const options: [string, string][] = [
    ['', 'none'],
    ...[...new Set([...(names?.plugins ?? []), ...(plugin ? [plugin] : [])])].map(
      (name): [string, string] => [name, name],
    ),
  ];
  return (
    <fieldset>
      <legend>Throttler</legend>
      <div class="item">
        <SelectField
          label="Plugin"
          value={plugin}
          options={options}
          error={errorOf('throttler.plugin') ?? errorOf('throttler')}
          onInput={(name) => set(name ? { on_failure: 'hold', ...value, plugin: name } : null)}
        />
        {value && (
          <>
            <SelectField
              label="If a call fails"
              value={shown(value.on_failure) || 'hold'}
              options={['hold', 'run']}
              onInput={(on_failure) => set({ ...value, on_failure })}
            />
            <AreaField
              label="Configuration (JSON)"
              value={draft.texts.throttler ?? '{}'}
              error={errorOf('throttler.config')}
              onInput={(text) => onChange({ ...draft, texts: { ...draft.texts, throttler: text } })}
            />
          </>
        )}
      </div>
    </fieldset>
  );
}
