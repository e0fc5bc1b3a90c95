// Windows: the times of day in which jobs may start.

import type { components } from '../schema';
import { TextField } from './fields';

/** A window as the API has it. */
export type Window = components['schemas']['Window'];

const DAYS = ['mon', 'tue', 'wed', 'thu', 'fri', 'sat', 'sun'] as const;
const NEW: Window = {
  from: '08:00',
  to: '18:00',
  tz: Intl.DateTimeFormat().resolvedOptions().timeZone,
};

/** A window in words: `mon, tue 08:00 to 18:00 Europe/Berlin`. */
export function windowText(window: Window): string {
  const days = window.days?.length && window.days.length < 7 ? `${window.days.join(', ')} ` : '';
  return `${days}${window.from} to ${window.to} ${window.tz ?? 'UTC'}`;
}

/** A list of windows to edit. `errorOf` gives the server's message about a field of one. */
export function WindowsField(props: {
  value: Window[];
  onChange: (value: Window[]) => void;
  errorOf?: (field: string) => string | undefined;
}) {
  const { value, onChange, errorOf } = props;
  const change = (at: number, part: Partial<Window>) =>
    onChange(value.map((one, i) => (i === at ? { ...one, ...part } : one)));
  return (
    <fieldset>
      <legend>Windows</legend>
      {value.length === 0 && <p class="soft">Jobs may start at any time.</p>}
      {value.map((window, at) => (
        <div class="item" key={at}>
          <TextField
            label="From"
            value={window.from}
            error={errorOf?.(`windows[${at}].from`)}
            onInput={(from) => change(at, { from })}
          />
          <TextField
            label="To"
            value={window.to}
            error={errorOf?.(`windows[${at}].to`)}
            onInput={(to) => change(at, { to })}
          />
          <TextField
            label="Zone"
            value={window.tz ?? ''}
            placeholder="UTC"
            error={errorOf?.(`windows[${at}].tz`)}
            onInput={(tz) => change(at, { tz: tz || null })}
          />
          <Days window={window} onChange={(days) => change(at, { days })} />
          <button
            type="button"
            class="small"
            onClick={() => onChange(value.filter((_, i) => i !== at))}
          >
            Remove
          </button>
        </div>
      ))}
      <button type="button" class="small" onClick={() => onChange([...value, NEW])}>
        Add a window
      </button>
    </fieldset>
  );
}

function Days({
  window,
  onChange,
}: {
  window: Window;
  onChange: (days: (typeof DAYS)[number][] | null) => void;
}) {
  const days = window.days?.length ? window.days : [...DAYS];
  const toggle = (day: (typeof DAYS)[number]) => {
    const next = DAYS.filter((one) => (one === day ? !days.includes(day) : days.includes(one)));
    onChange(next.length === DAYS.length || next.length === 0 ? null : next);
  };
  return (
    <span class="days">
      {DAYS.map((day) => (
        <label key={day} class="check">
          <input type="checkbox" checked={days.includes(day)} onChange={() => toggle(day)} />
          {day}
        </label>
      ))}
    </span>
  );
}
