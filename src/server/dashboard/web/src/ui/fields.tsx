// Fields of forms, each with a label and the server's message about it.

import type { ComponentChildren } from 'preact';
import { useId } from 'preact/hooks';

/** What all fields have. */
interface Common {
  label: string;
  value: string;
  onInput: (value: string) => void;
  help?: string | undefined;
  error?: string | undefined;
  disabled?: boolean;
}

/** A label, its control, a hint and an error. */
export function Labelled(props: {
  label: string;
  help?: string | undefined;
  error?: string | undefined;
  children: (id: string, described: string | undefined) => ComponentChildren;
}) {
  const id = useId();
  const described = props.help || props.error ? `${id}-about` : undefined;
  return (
    <div class={props.error ? 'field wrong' : 'field'}>
      <label for={id}>{props.label}</label>
      {props.children(id, described)}
      {described && (
        <small id={described} class={props.error ? 'wrong' : 'soft'}>
          {props.error ?? props.help}
        </small>
      )}
    </div>
  );
}

/** One line of text. `list` completes from known values. */
export function TextField(
  props: Common & {
    type?: 'text' | 'number';
    list?: string[];
    placeholder?: string;
    required?: boolean;
  },
) {
  const { list } = props;
  return (
    <Labelled label={props.label} help={props.help} error={props.error}>
      {(id, described) => (
        <>
          <input
            id={id}
            type={props.type ?? 'text'}
            value={props.value}
            placeholder={props.placeholder}
            required={props.required}
            disabled={props.disabled}
            list={list?.length ? `${id}-list` : undefined}
            aria-describedby={described}
            aria-invalid={Boolean(props.error)}
            autoComplete="off"
            autoCapitalize="off"
            spellcheck={false}
            onInput={(event) => props.onInput(event.currentTarget.value)}
          />
          {Boolean(list?.length) && (
            <datalist id={`${id}-list`}>
              {list?.map((value) => (
                <option key={value} value={value} />
              ))}
            </datalist>
          )}
        </>
      )}
    </Labelled>
  );
}

/** Several lines of text, such as JSON. */
export function AreaField(props: Common & { rows?: number }) {
  return (
    <Labelled label={props.label} help={props.help} error={props.error}>
      {(id, described) => (
        <textarea
          id={id}
          rows={props.rows ?? 5}
          value={props.value}
          disabled={props.disabled}
          spellcheck={false}
          aria-describedby={described}
          aria-invalid={Boolean(props.error)}
          onInput={(event) => props.onInput(event.currentTarget.value)}
        />
      )}
    </Labelled>
  );
}

/** One of some words. */
export function SelectField(props: Common & { options: readonly (string | [string, string])[] }) {
  return (
    <Labelled label={props.label} help={props.help} error={props.error}>
      {(id, described) => (
        <select
          id={id}
          value={props.value}
          disabled={props.disabled}
          aria-describedby={described}
          onChange={(event) => props.onInput(event.currentTarget.value)}
        >
          {props.options.map((option) => {
            const [value, text] = typeof option === 'string' ? [option, option] : option;
            return (
              <option key={value} value={value}>
                {text}
              </option>
            );
          })}
        </select>
      )}
    </Labelled>
  );
}

/** A box to tick. */
export function CheckField(props: {
  label: string;
  checked: boolean;
  onChange: (checked: boolean) => void;
  help?: string;
  disabled?: boolean;
}) {
  return (
    <label class="check">
      <input
        type="checkbox"
        checked={props.checked}
        disabled={props.disabled}
        onChange={(event) => props.onChange(event.currentTarget.checked)}
      />
      <span>
        {props.label}
        {props.help && <small class="soft"> {props.help}</small>}
      </span>
    </label>
  );
}
