// Short messages about what the user did.

import { signal } from '@preact/signals';
import { ApiError, message } from '../api/client';
import { ended } from '../api/session';

/** A message. Errors stay until they are closed. */
export interface Notice {
  id: number;
  kind: 'done' | 'error';
  text: string;
}

const DONE_MS = 6000;
let next = 1;

/** The messages on the screen, oldest first. */
export const notices = signal<Notice[]>([]);

/** Shows a message. */
export function notify(kind: Notice['kind'], text: string): void {
  const id = next++;
  notices.value = [...notices.value.slice(-3), { id, kind, text }];
  if (kind === 'done') setTimeout(() => dismiss(id), DONE_MS);
}

/** Removes a message. */
export function dismiss(id: number): void {
  notices.value = notices.value.filter((notice) => notice.id !== id);
}

/** Does something for the user, and shows how it ended. True if it succeeded. */
export async function attempt(work: () => Promise<unknown>, done?: string): Promise<boolean> {
  try {
    await work();
    if (done) notify('done', done);
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.kind === 'not_signed_in') ended();
    notify('error', message(error));
    return false;
  }
}
