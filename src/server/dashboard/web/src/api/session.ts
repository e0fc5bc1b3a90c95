// Who uses the console, what the token allows, and what the server can do.

import { computed, signal } from '@preact/signals';
import { ApiError, get, open, send } from './client';
import { borrow, forget, keep, whenSignedOut } from './credentials';
import type { Session } from './types';

/** The session; null until it is known. */
export const session = signal<Session | null>(null);

/** Why the last sign-in failed. */
export const refusal = signal('');

/** Whether the console may offer a change: the scope allows it, and it is not read-only. */
export function may(scope: 'admin' | 'enqueue' | 'work' | 'read' | 'enqueue:critical'): boolean {
  const now = session.value;
  if (!now?.authenticated) return false;
  if (scope !== 'read' && now.console?.read_only) return false;
  return now.scopes.includes('admin') || now.scopes.includes(scope);
}

/** Whether the token sees what only admin may see, even in a read-only console. */
export const isAdmin = computed(() => Boolean(session.value?.scopes.includes('admin')));

/**
 * Whether the server validates a change of settings without making it. A server that does not
 * describe its session ignores the parameter, and would make the change.
 */
export const dryRuns = signal(false);

/** Whether the server is a serverless deployment, where reads cost and counts come each minute. */
export const serverless = computed(() => session.value?.server?.deployment_mode === 'serverless');

const CONSOLE = { title: 'tidegate', read_only: false, servers: [] };
const OPEN: Session = { authenticated: false, scopes: [], sign_in: ['token'], console: CONSOLE };

/** Reads the session. A server without that route is probed for what it allows. */
export async function readSession(): Promise<void> {
  try {
    session.value = await get<Session>('v1/session');
    dryRuns.value = true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.kind === 'not_found') session.value = await probe();
    else if (error.kind === 'not_signed_in') session.value = { ...OPEN };
    else throw error;
  }
}

/** The session at a server that does not describe it. */
async function probe(): Promise<Session> {
  const status = async (to: string) => (await open('GET', to, { query: { limit: 1 } })).status;
  if ((await status('v1/queues')) === 401) return { ...OPEN };
  const scopes = (await status('v1/tokens')) === 200 ? ['admin'] : ['read'];
  const health = await get<{ version: string }>('healthz').catch(() => null);
  const server = {
    version: health?.version ?? '',
    deployment_mode: 'embedded' as const,
    stream: true,
    simulate: false,
  };
  return { ...OPEN, authenticated: true, scopes, signed_in_by: 'token', server };
}

/** Signs in with a token, if the server accepts it. */
export async function signIn(secret: string): Promise<void> {
  keep(secret);
  refusal.value = '';
  await readSession();
  if (!session.value?.authenticated) {
    keep('');
    refusal.value = 'The server does not accept this token.';
  }
}

/** Signs out in every tab. */
export async function signOut(): Promise<void> {
  if (session.value?.signed_in_by === 'oidc')
    await send('POST', 'console/sign-out').catch(() => null);
  forget();
  session.value = null;
  await readSession();
}

/** The session has ended at the server: the sign-in page follows, at the same address. */
export function ended(): void {
  if (session.value?.authenticated)
    session.value = { ...session.value, authenticated: false, scopes: [] };
}

/** Starts: takes the token of another tab, and reads the session. */
export async function start(): Promise<void> {
  whenSignedOut(() => void readSession().catch(() => null));
  await borrow();
  await readSession();
}
