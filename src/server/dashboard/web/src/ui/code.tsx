// JSON and other texts of jobs: pretty, with a bound, to be copied.

import { useState } from 'preact/hooks';
import { bytes } from '../lib/format';
import { pretty } from '../lib/json';
import { Copy } from './basics';

/** Longer texts are shown in part until the user wants all. */
const SHOWN = 20_000;

/** A text in its own frame. */
export function Code({ text, label }: { text: string; label: string }) {
  const [whole, setWhole] = useState(false);
  const long = text.length > SHOWN && !whole;
  return (
    <div class="code">
      <div class="tools">
        <span class="soft">{bytes(new Blob([text]).size)}</span>
        <Copy text={text} label={`Copy ${label}`} />
      </div>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by key */}
      {/* biome-ignore lint/a11y/useSemanticElements: a fieldset is for controls */}
      <pre tabIndex={0} role="group" aria-label={label}>
        {long ? text.slice(0, SHOWN) : text}
      </pre>
      {long && (
        <button type="button" class="small" onClick={() => setWhole(true)}>
          Show all
        </button>
      )}
    </div>
  );
}

/** A JSON text, indented. */
export function JsonText({ raw, label }: { raw: string; label: string }) {
  return <Code text={pretty(raw)} label={label} />;
}

/** A JSON value, indented. */
export function JsonValue({ value, label }: { value: unknown; label: string }) {
  return <Code text={JSON.stringify(value, null, 2) ?? 'null'} label={label} />;
}

/** Details of an error: texts such as stack traces as lines, the rest as JSON. */
export function Details({ value, label }: { value: unknown; label: string }) {
  if (value === null || value === undefined) return null;
  if (typeof value === 'string') return <Code text={value} label={label} />;
  if (typeof value !== 'object' || Array.isArray(value))
    return <JsonValue value={value} label={label} />;
  const entries = Object.entries(value);
  const traces = entries.filter(([, one]) => typeof one === 'string' && one.includes('\n'));
  const rest = Object.fromEntries(entries.filter((entry) => !traces.includes(entry)));
  return (
    <>
      {traces.map(([name, text]) => (
        <Code key={name} text={String(text)} label={name} />
      ))}
      {Object.keys(rest).length > 0 && <JsonValue value={rest} label={label} />}
    </>
  );
}
