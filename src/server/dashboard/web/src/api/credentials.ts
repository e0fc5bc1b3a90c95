// The token of this tab, shared with other tabs of the same console while they are open.

import { signal } from '@preact/signals';

const BASE = new URL('.', location.href).pathname;
const KEY = `tidegate.token ${BASE}`;
const WAIT_MS = 200;

type Message = { kind: 'wanted' } | { kind: 'token'; token: string } | { kind: 'sign_out' };

/** The bearer token; empty without one. It is kept until the tab is closed, and never on disk. */
export const token = signal(sessionStorage.getItem(KEY) ?? '');

const channel =
  typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel(`tidegate ${BASE}`);
let answered: ((token: string) => void) | null = null;
let onSignOut: () => void = () => {};

channel?.addEventListener('message', (event: MessageEvent<Message>) => {
  const { data } = event;
  if (data.kind === 'wanted' && token.peek()) send({ kind: 'token', token: token.peek() });
  else if (data.kind === 'token') answered?.(data.token);
  else if (data.kind === 'sign_out') {
    keep('');
    onSignOut();
  }
});

function send(message: Message): void {
  channel?.postMessage(message);
}

/** Keeps a token for this tab; an empty one forgets it. */
export function keep(value: string): void {
  token.value = value;
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

/** Takes the token of another tab, if this one has none and one answers. */
export async function borrow(): Promise<void> {
  if (token.peek() || !channel) return;
  const found = await new Promise<string>((resolve) => {
    answered = resolve;
    send({ kind: 'wanted' });
    setTimeout(() => resolve(''), WAIT_MS);
  });
  answered = null;
  if (found && !token.peek()) keep(found);
}

/** Forgets the token in every tab. */
export function forget(): void {
  keep('');
  send({ kind: 'sign_out' });
}

/** Calls `then` when another tab signs out. */
export function whenSignedOut(then: () => void): void {
  onSignOut = then;
}
