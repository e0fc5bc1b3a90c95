// The smallest parts: times, phases, copying, empty places, errors.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { ApiError, message } from '../api/client';
import { age, full, relative, short } from '../lib/format';
import { now } from '../state/live';
import { zone } from '../state/prefs';

/** An instant: absolute, and relative to now. The whole of it is in the title. */
export function Time({
  at,
  only,
}: {
  at: string | null | undefined;
  only?: 'relative' | 'absolute';
}) {
  if (!at) return <span class="soft">–</span>;
  return (
    <time class="time" dateTime={at} title={full(at, zone.value)}>
      {only !== 'relative' && <span class="num">{short(at, zone.value, now.value)}</span>}
      {only !== 'absolute' && <span class={only ? '' : 'soft'}>{relative(at, now.value)}</span>}
    </time>
  );
}

/** How long ago an instant was, in one unit. The instant is in the title. */
export function Age({ at }: { at: string | null | undefined }) {
  if (!at) return <span class="soft">–</span>;
  return (
    <time dateTime={at} title={full(at, zone.value)}>
      {age(at, now.value)}
    </time>
  );
}

/** A word with the colour of its meaning: a phase, an outcome, a level. */
export function Badge({ word, tone }: { word: string; tone?: string }) {
  return <span class={`badge tone-${tone ?? word}`}>{word.replace(/_/g, ' ')}</span>;
}

/** A button that copies a text. */
export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [done, setDone] = useState('');
  const copy = async () => {
    const ok = await navigator.clipboard?.writeText(text).then(
      () => true,
      () => false,
    );
    setDone(ok ? 'Copied' : 'Select it and copy by hand');
    setTimeout(() => setDone(''), 2000);
  };
  return (
    <button type="button" class="small quiet" onClick={copy}>
      <span aria-live="polite">{done || label}</span>
    </button>
  );
}

/** What a list shows that has nothing. */
export function Empty({ children }: { children: ComponentChildren }) {
  return <p class="empty">{children}</p>;
}

/** Why a page has nothing to show, or shows what it had before. */
export function Failed({ error, what }: { error: unknown; what: string }) {
  if (!error) return null;
  const kind = error instanceof ApiError ? error.kind : 'fault';
  if (kind === 'no_answer' || kind === 'not_signed_in') return null;
  if (kind === 'unsupported') return <p class="empty">This server does not have {what}.</p>;
  if (kind === 'forbidden')
    return (
      <p class="empty">
        Your token may not read {what}: {message(error)}
      </p>
    );
  return (
    <p class="failure" role="alert">
      {kind === 'not_found' ? 'Not found: ' : ''}
      {message(error)}
    </p>
  );
}

/** Shows that the first answer is still awaited, after a moment. */
export function Loading() {
  return (
    <p class="loading" role="status">
      Loading …
    </p>
  );
}

/** A list of names and values. Values that are absent are left out. */
export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  const shown = rows.filter(
    ([, value]) => value !== null && value !== undefined && value !== '' && value !== false,
  );
  return (
    <dl class="facts">
      {shown.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

/** A part of a page with a heading. */
export function Section(props: {
  title: string;
  side?: ComponentChildren;
  id?: string;
  children: ComponentChildren;
}) {
  return (
    <section class="panel" id={props.id}>
      <header>
        <h2>{props.title}</h2>
        {props.side && <div class="side">{props.side}</div>}
      </header>
      {props.children}
    </section>
  );
}

/** A button that waits for its work, and cannot be pressed twice meanwhile. */
export function Button(props: {
  onClick: () => unknown;
  children: ComponentChildren;
  kind?: string;
  disabled?: boolean;
  label?: string;
  title?: string;
}) {
  const [busy, setBusy] = useState(false);
  const click = async () => {
    if (busy) return;
    setBusy(true);
    try {
      await props.onClick();
    } finally {
      setBusy(false);
    }
  };
  return (
    <button
      type="button"
      class={props.kind ?? ''}
      onClick={click}
      disabled={props.disabled ?? false}
      aria-busy={busy}
      aria-label={props.label}
      title={props.title}
    >
      {props.children}
    </button>
  );
}
