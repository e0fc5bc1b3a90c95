// Creating a token. Its secret is shown once.

import { useState } from 'preact/hooks';
import { ApiError, post, serverNow } from '../api/client';
import type { Token } from '../api/types';
import { resolve } from '../lib/filter';
import { useNames } from '../state/names';
import { Copy } from '../ui/basics';
import { Confirm, Dialog } from '../ui/dialog';
import { CheckField, TextField } from '../ui/fields';

const SCOPES: readonly [string, string][] = [
  ['read', 'read everything but secrets'],
  ['enqueue', 'enqueue jobs, change its own'],
  ['enqueue:critical', 'with enqueue: critical jobs'],
  ['work', 'lease jobs and report'],
  ['admin', 'everything'],
];

const words = (text: string): string[] => text.split(/[\s,]+/).filter(Boolean);

/** The dialog. `first`: the server has no token yet, and needs an administrator. */
export function NewToken({
  first,
  onClose,
  onDone,
}: {
  first: boolean;
  onClose: () => void;
  onDone: () => void;
}) {
  const [name, setName] = useState('');
  const [scopes, setScopes] = useState<string[]>(first ? ['admin'] : ['read']);
  const [queues, setQueues] = useState('');
  const [types, setTypes] = useState('');
  const [expires, setExpires] = useState('');
  const [made, setMade] = useState<Token | null>(null);
  const [field, setField] = useState<[string, string]>(['', '']);
  const names = useNames().data;
  const errorOf = (at: string) => (field[0].startsWith(at) ? field[1] : undefined);
  const work = async () => {
    const body = {
      name,
      scopes,
      ...(expires ? { expires_at: resolve(expires, serverNow()) } : {}),
      ...(words(queues).length ? { queues: words(queues) } : {}),
      ...(words(types).length ? { types: words(types) } : {}),
    };
    try {
      setMade(await post<Token>('v1/tokens', body));
      onDone();
    } catch (error) {
      if (error instanceof ApiError) setField([error.field, error.message]);
      throw error;
    }
  };
  if (made) {
    return (
      <Dialog title={`Token ${made.name}`} onClose={onClose}>
        <p>
          <strong>Keep it now: it is shown only once.</strong>
        </p>
        <p class="secret">
          <code>{made.token}</code> <Copy text={made.token ?? ''} label="Copy the token" />
        </p>
        <footer>
          <button type="button" class="primary" onClick={onClose}>
            I have kept it
          </button>
        </footer>
      </Dialog>
    );
  }
  return (
    <Confirm
      title="New token"
      verb="Create the token"
      stay
      disabled={!name || !scopes.length}
      onClose={onClose}
      work={work}
    >
      {first && (
        <p>
          After the first token the server admits only callers with one. You will have to sign in
          with it.
        </p>
      )}
      <TextField label="Name" value={name} error={errorOf('name')} onInput={setName} />
      <fieldset>
        <legend>Scopes</legend>
        {SCOPES.map(([scope, help]) => (
          <CheckField
            key={scope}
            label={scope}
            help={help}
            checked={scopes.includes(scope)}
            onChange={(on) =>
              setScopes(on ? [...scopes, scope] : scopes.filter((one) => one !== scope))
            }
          />
        ))}
      </fieldset>
      <TextField
        label="Only these queues"
        value={queues}
        list={names?.queues ?? []}
        help="Empty: all. Several with commas"
        error={errorOf('queues')}
        onInput={setQueues}
      />
      <TextField
        label="Only these types"
        value={types}
        list={names?.types ?? []}
        help="Empty: all. Several with commas"
        error={errorOf('types')}
        onInput={setTypes}
      />
      <TextField
        label="Expires"
        value={expires}
        placeholder="never"
        help="+90d, or a date"
        error={errorOf('expires_at')}
        onInput={setExpires}
      />
    </Confirm>
  );
}
