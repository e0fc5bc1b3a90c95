// Saved views: filters of jobs under names, kept in this browser.

import { useState } from 'preact/hooks';
import { conditions } from '../lib/filter';
import { views } from '../state/prefs';
import { TextField } from '../ui/fields';
import { Menu } from '../ui/menu';

/** Views that are always there. */
const USUAL: readonly [string, string][] = [
  ['Failed since yesterday', 'phase=failed&ended_from=-24h'],
  ['Retrying', 'phase=retrying'],
  ['Running', 'phase=running'],
];

/** A menu of the views, with a field to save the present one. */
export function Views({
  query,
  onApply,
}: {
  query: URLSearchParams;
  onApply: (query: URLSearchParams) => void;
}) {
  const [name, setName] = useState('');
  const save = () => {
    const text = new URLSearchParams(conditions(query)).toString();
    if (!name.trim()) return;
    views.value = [
      ...views.value.filter((view) => view.name !== name.trim()),
      { name: name.trim(), query: text },
    ];
    setName('');
  };
  const remove = (gone: string) => {
    views.value = views.value.filter((view) => view.name !== gone);
  };
  return (
    <Menu title="Views">
      {(close) => (
        <>
          {[
            ...USUAL.map(([title, text]) => ({ name: title, query: text, own: false })),
            ...views.value.map((view) => ({ ...view, own: true })),
          ].map((view) => (
            <span key={`${view.own} ${view.name}`} class="row">
              <button
                type="button"
                class="quiet"
                onClick={() => {
                  close();
                  onApply(new URLSearchParams(view.query));
                }}
              >
                {view.name}
              </button>
              {view.own && (
                <button
                  type="button"
                  class="small quiet"
                  aria-label={`Delete the view ${view.name}`}
                  onClick={() => remove(view.name)}
                >
                  ✕
                </button>
              )}
            </span>
          ))}
          <form
            onSubmit={(event) => {
              event.preventDefault();
              save();
              close();
            }}
          >
            <TextField label="Save this filter as" value={name} onInput={setName} />
            <button type="submit" class="small" disabled={!name.trim()}>
              Save
            </button>
          </form>
        </>
      )}
    </Menu>
  );
}
