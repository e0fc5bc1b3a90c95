// The stream of changes: one connection, by fetch, because EventSource cannot send a token.

import { EventReader } from '../lib/sse';
import { open } from './client';
import type { JobChange } from './types';

/** A change that the server committed, or the news that some are missing. */
export interface Change {
  kind: 'job' | 'removed' | 'queue' | 'job_type' | 'worker' | 'ready' | 'skipped';
  job?: JobChange;
}

/** What of the changes a connection brings; empty means all. */
export interface StreamFilter {
  queue?: string;
  type?: string;
  id?: string;
}

/** How a connection ended: try again, or never at this server. */
export type StreamEnd = 'lost' | 'unsupported';

/** Reads changes until the signal or the server ends the connection. */
export async function follow(
  filter: StreamFilter,
  signal: AbortSignal,
  onOpen: () => void,
  onChanges: (changes: Change[]) => void,
): Promise<StreamEnd> {
  const response = await open('GET', 'v1/stream', { query: { ...filter }, signal });
  if (!response.ok || !response.body) {
    await response.body?.cancel();
    return [403, 404, 405, 501].includes(response.status) ? 'unsupported' : 'lost';
  }
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const events = new EventReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return 'lost';
    const changes = events.push(value).map((event) => change(event.name, event.data));
    if (changes.length) onChanges(changes);
  }
}

function change(name: string, data: string): Change {
  const kind = name as Change['kind'];
  if (kind !== 'job') return { kind };
  try {
    return { kind, job: JSON.parse(data) as JobChange };
  } catch {
    return { kind: 'skipped' };
  }
}
