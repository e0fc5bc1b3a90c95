// Dialogs on top of the page. The browser keeps the focus inside, and returns it afterwards.

import type { ComponentChildren } from 'preact';
import { useId, useLayoutEffect, useRef, useState } from 'preact/hooks';
import { ApiError, message } from '../api/client';
import { Button } from './basics';

/** A dialog. It closes by its button, by Escape, and by what `onClose` is bound to. */
export function Dialog(props: {
  title: string;
  wide?: boolean;
  onClose: () => void;
  children: ComponentChildren;
}) {
  const element = useRef<HTMLDialogElement>(null);
  const title = useId();
  // At once: later, an update may have moved the focus from what opened the dialog.
  useLayoutEffect(() => {
    const dialog = element.current;
    const before = document.activeElement;
    dialog?.showModal();
    return () => {
      dialog?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={element}
      class={props.wide ? 'wide' : ''}
      aria-labelledby={title}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
    >
      <header>
        <h2 id={title}>{props.title}</h2>
        <button type="button" class="quiet" onClick={props.onClose} aria-label="Close">
          ✕
        </button>
      </header>
      <div class="body">{props.children}</div>
    </dialog>
  );
}

/** Asks before something is done. It stays open with the error if that fails. */
export function Confirm(props: {
  title: string;
  verb: string;
  danger?: boolean;
  disabled?: boolean;
  /** It stays open after the work, to show what came of it. */
  stay?: boolean;
  onClose: () => void;
  work: () => Promise<unknown>;
  children: ComponentChildren;
}) {
  const [error, setError] = useState<unknown>(null);
  const run = async () => {
    try {
      await props.work();
      if (!props.stay) props.onClose();
    } catch (failed) {
      setError(failed);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      {props.children}
      <Fault error={error} />
      <footer>
        <Button
          kind={props.danger ? 'danger' : 'primary'}
          onClick={run}
          disabled={props.disabled ?? false}
        >
          {props.verb}
        </Button>
        <button type="button" onClick={props.onClose}>
          {props.danger ? 'Keep as it is' : 'Close'}
        </button>
      </footer>
    </Dialog>
  );
}

/** What the server objects to. */
export function Fault({ error }: { error: unknown }) {
  if (!error) return null;
  const field = error instanceof ApiError ? error.field : '';
  return (
    <p class="failure" role="alert">
      {field && <code>{field}</code>} {message(error)}
    </p>
  );
}
