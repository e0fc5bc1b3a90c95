// Creating and changing a trigger, as JSON.

import { useState } from 'preact/hooks';
import { ApiError, path, send } from '../api/client';
import { fault } from '../lib/json';
import { href } from '../lib/route';
import { notify } from '../state/notices';
import { go } from '../state/router';
import { Confirm } from '../ui/dialog';
import { AreaField, TextField } from '../ui/fields';

const EXAMPLE = {
  filter: { type: 'order.paid' },
  enqueue: { type: 'mail', data: { order: { $expr: 'data.id' } } },
};

/** The dialog. With a `name` it changes that trigger, if nothing else has changed it meanwhile. */
export function TriggerForm(props: {
  name?: string;
  config?: object;
  etag?: string | null;
  onClose: () => void;
  onDone: () => void;
}) {
  // The trigger may change while it is edited. The change is then refused.
  const [etag] = useState(props.etag ?? null);
  const [name, setName] = useState(props.name ?? '');
  const [text, setText] = useState(JSON.stringify(props.config ?? EXAMPLE, null, 2));
  const [refused, setRefused] = useState('');
  const wrong = fault(text) ?? (refused || undefined);
  const work = async () => {
    try {
      await send('PUT', path`v1/triggers/${name}`, { raw: text, etag });
    } catch (error) {
      if (error instanceof ApiError && error.field) setRefused(`${error.field}: ${error.message}`);
      throw error;
    }
    notify('done', props.name ? 'The trigger is changed.' : 'The trigger is created.');
    props.onDone();
    if (!props.name) go(href(['triggers', name]));
  };
  return (
    <Confirm
      title={props.name ? `Edit ${props.name}` : 'New trigger'}
      verb={props.name ? 'Change the trigger' : 'Create the trigger'}
      disabled={!name || Boolean(fault(text))}
      onClose={props.onClose}
      work={work}
    >
      {!props.name && <TextField label="Name" value={name} onInput={setName} />}
      <AreaField
        label="Trigger (JSON)"
        rows={14}
        value={text}
        error={wrong}
        onInput={(next) => {
          setText(next);
          setRefused('');
        }}
      />
      <p class="soft">
        Dead letters keep their events: after a correction, replay them. Test an event on the page
        of the trigger.
      </p>
    </Confirm>
  );
}
