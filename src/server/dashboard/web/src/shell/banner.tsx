// What is wrong with the connection, and short messages.

import { connection } from '../api/client';
import { session } from '../api/session';
import { dismiss, notices } from '../state/notices';

/** Says that the server does not answer. Pages keep what they had. */
export function Banner() {
  if (connection.value !== 'no_answer') return null;
  return (
    <div class="banner bad" role="alert">
      <strong>No answer.</strong> The server cannot be reached.{' '}
      {session.value ? 'The page shows what it had; ' : ''}
      it is tried again every two seconds.
    </div>
  );
}

/** The messages about what the user did. */
export function Notices() {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((notice) => (
        <div key={notice.id} class={`notice ${notice.kind}`}>
          <span>{notice.text}</span>
          <button
            type="button"
            class="quiet small"
            aria-label="Dismiss"
            onClick={() => dismiss(notice.id)}
          >
            ✕
          </button>
        </div>
      ))}
    </div>
  );
}
