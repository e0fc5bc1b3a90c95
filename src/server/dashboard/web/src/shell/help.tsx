// The keys, in a dialog.

import { Dialog } from '../ui/dialog';
import { KEYS } from './keys';
import { PAGES } from './shell';

/** The help. */
export function Help({ onClose }: { onClose: () => void }) {
  const keys: [string, string][] = [
    ...KEYS,
    ...PAGES.map((page): [string, string] => [`g ${page.key}`, page.title]),
  ];
  return (
    <Dialog title="Keys" onClose={onClose}>
      <dl class="keys">
        {keys.map(([key, does]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <p class="soft">
        The search finds jobs by id, and queues, types, schedules, triggers, plugins and workers by
        a part of their names. <code>name=value</code> finds jobs by an attribute.
      </p>
    </Dialog>
  );
}
