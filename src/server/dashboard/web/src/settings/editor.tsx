// Editing settings: a form, a preview of what changes, and then the change, if nothing else came first.

import { useState } from 'preact/hooks';
import { ApiError, send } from '../api/client';
import { dryRuns } from '../api/session';
import { type Change, changes, inline, type JsonObject, mergePatch } from '../lib/diff';
import { useNames } from '../state/names';
import { notify } from '../state/notices';
import { Button } from '../ui/basics';
import { Dialog, Fault } from '../ui/dialog';
import { Control } from './controls';
import { draftFault, draftOf, type Spec, settingsOf } from './specs';

interface Preview {
  patch: JsonObject;
  changes: Change[];
}

/** What the server makes of a patch; an older server cannot tell, and the patch itself is shown. */
async function ask(
  at: string,
  etag: string | null,
  before: JsonObject,
  patch: JsonObject,
  specs: readonly Spec[],
): Promise<Change[]> {
  const names = specs.map((spec) => spec.name);
  const only = (view: JsonObject): JsonObject =>
    Object.fromEntries(names.map((name) => [name, view[name] ?? null]));
  if (!dryRuns.peek()) return changes(only(before), { ...only(before), ...patch });
  const options = { body: patch, etag, query: { dry_run: 'true' } };
  const { value } = await send<JsonObject>('PATCH', at, options);
  return changes(only(before), only(value));
}

/** The dialog. `start` are settings that differ from the present ones from the first. */
export function SettingsEditor(props: {
  title: string;
  /** The route of the queue or the type. */
  at: string;
  before: JsonObject;
  etag: string | null;
  specs: readonly Spec[];
  start?: JsonObject;
  onClose: () => void;
  onDone: () => void;
}) {
  const { at, specs } = props;
  // The settings may change while they are edited. The change is then refused.
  const [{ before, etag }] = useState({ before: props.before, etag: props.etag });
  const [draft, setDraft] = useState(() => draftOf({ ...before, ...props.start }, specs));
  const [preview, setPreview] = useState<Preview | null>(null);
  const [error, setError] = useState<unknown>(null);
  const names = useNames().data;
  const wrong = draftFault(draft);
  const errorOf = (field: string): string | undefined => {
    if (wrong?.field === field) return wrong.message;
    return error instanceof ApiError && error.field === field ? error.message : undefined;
  };
  const look = async () => {
    setError(null);
    const known = Object.fromEntries(specs.map(({ name }) => [name, before[name] ?? null]));
    const patch = mergePatch(known, settingsOf(draft, specs));
    try {
      setPreview({
        patch,
        changes: Object.keys(patch).length ? await ask(at, etag, before, patch, specs) : [],
      });
    } catch (failed) {
      setError(failed);
    }
  };
  const apply = async () => {
    try {
      await send('PATCH', at, { body: preview?.patch, etag });
      notify('done', 'The settings are changed.');
      props.onDone();
      props.onClose();
    } catch (failed) {
      setError(failed);
    }
  };
  if (preview) {
    return (
      <Dialog title={`${props.title}: what changes`} wide onClose={props.onClose}>
        <Differences changes={preview.changes} />
        <Fault error={error} />
        <footer>
          <Button kind="primary" onClick={apply} disabled={!preview.changes.length}>
            Apply
          </Button>
          <button
            type="button"
            onClick={() => {
              setPreview(null);
              setError(null);
            }}
          >
            Edit further
          </button>
        </footer>
      </Dialog>
    );
  }
  return (
    <Dialog title={props.title} wide onClose={props.onClose}>
      <div class="fields">
        {specs.map((spec) => (
          <Control
            key={spec.name}
            spec={spec}
            draft={draft}
            onChange={setDraft}
            errorOf={errorOf}
            names={names}
          />
        ))}
      </div>
      <Fault error={error} />
      <footer>
        <Button kind="primary" onClick={look} disabled={Boolean(wrong)}>
          Preview the changes
        </Button>
        <button type="button" onClick={props.onClose}>
          Close
        </button>
      </footer>
    </Dialog>
  );
}

/** Settings before and after, side by side. */
export function Differences({ changes: list }: { changes: Change[] }) {
  if (!list.length) return <p>Nothing differs from the present settings.</p>;
  return (
    <table class="differences">
      <thead>
        <tr>
          <th scope="col">Setting</th>
          <th scope="col">Now</th>
          <th scope="col">Then</th>
        </tr>
      </thead>
      <tbody>
        {list.map((change) => (
          <tr key={change.path}>
            <th scope="row">
              <code>{change.path}</code>
            </th>
            <td>
              <del>{inline(change.before)}</del>
            </td>
            <td>
              <ins>{inline(change.after)}</ins>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
