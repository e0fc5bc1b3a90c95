// Live updates: a stream of changes where the server has one, and polling. They stop while the page is
// hidden or paused, and wait while text is selected, so that a selection is not lost.

import { computed, effect, signal } from '@preact/signals';
import { useEffect, useRef, useState } from 'preact/hooks';
import { ApiError, serverNow } from '../api/client';
import { ended, serverless, session } from '../api/session';
import { type Change, follow, type StreamFilter } from '../api/stream';
import { interval } from './prefs';

const POLL_MS = 2000;
/** With a stream: rates and ages change without an event. */
const POLL_STREAMED_MS = 10_000;
/** Where counts are kept once a minute, and reads cost. */
const POLL_COUNTED_MS = 30_000;
const GAP_MS = 1000;
const RECONNECT_MS = 2000;

/** Whether the user has paused updates. */
export const paused = signal(false);

/** Whether the stream of changes is connected. */
export const streaming = signal(false);

/** The time for relative texts. It moves each second, unless updates are paused or held. */
export const now = signal(Date.now());

/** The same, in steps of a minute, for pictures whose steps are minutes. */
export const nowMinute = computed(() => Math.floor(now.value / 60_000) * 60_000);

const hidden = signal(document.hidden);
document.addEventListener('visibilitychange', () => {
  hidden.value = document.hidden;
});

/** Whether text is selected, which an update could deselect. */
export const selecting = signal(false);
document.addEventListener('selectionchange', () => {
  selecting.value = document.getSelection()?.isCollapsed === false;
});

/** Whether an update may change the page now. */
export function mayUpdate(): boolean {
  return !paused.peek() && !hidden.peek() && !selecting.peek();
}

setInterval(() => {
  if (mayUpdate()) now.value = serverNow();
}, 1000);

type Listener = (changes: Change[]) => void;
const listeners = new Set<Listener>();
const filter = signal<StreamFilter>({});

/** Limits the stream to what the shown page is about. */
export function useStreamFilter(queue?: string, id?: string): void {
  useEffect(() => {
    filter.value = { ...(queue ? { queue } : {}), ...(id ? { id } : {}) };
    return () => {
      filter.value = {};
    };
  }, [queue, id]);
}

const unsupported = signal(false);

/** Whether the server has no stream, so that the page polls. */
export const polls = computed(
  () => session.value?.server?.stream === false || serverless.value || unsupported.value,
);

/** Keeps a stream connected while it is useful. */
export function startStream(): void {
  effect(() => {
    const wanted = !paused.value && !hidden.value && session.value?.authenticated;
    const wish = filter.value;
    if (!wanted || polls.value) return;
    const abort = new AbortController();
    // A page that is only passed through needs no connection of its own.
    const timer = setTimeout(() => void run(wish, abort.signal), 150);
    return () => {
      clearTimeout(timer);
      abort.abort();
      streaming.value = false;
    };
  });
}

async function run(wish: StreamFilter, signal: AbortSignal): Promise<void> {
  while (!signal.aborted && !unsupported.peek()) {
    const opened = () => {
      streaming.value = true;
    };
    const onChanges = (changes: Change[]) => {
      for (const listener of listeners) listener(changes);
    };
    const end = await follow(wish, signal, opened, onChanges).catch(() => 'lost' as const);
    streaming.value = false;
    if (end === 'unsupported') unsupported.value = true;
    else if (!signal.aborted) await new Promise((resolve) => setTimeout(resolve, RECONNECT_MS));
  }
}

/** What a page shows of the server. */
export interface Load<T> {
  data: T | null;
  error: unknown;
  /** Reads again now, whether updates are paused or not. */
  reload: () => Promise<void>;
}

/** How often a page reads again. */
export interface Refresh {
  /** The changes after which it reads again. */
  on?: (change: Change) => boolean;
  /** The milliseconds between two reads, if not the usual ones; 0: only by changes. */
  every?: number;
  /** The least milliseconds between two reads because of changes. */
  gap?: number;
}

/** Reads something of the server now, whenever `key` changes, and as it changes at the server. */
export function useLoad<T>(
  key: string,
  load: (signal: AbortSignal, partly: (data: T) => void) => Promise<T>,
  refresh: Refresh = {},
): Load<T> {
  const [state, setState] = useState<{ key: string; data: T | null; error: unknown }>({
    key,
    data: null,
    error: null,
  });
  const latest = useRef({ load, refresh });
  latest.current = { load, refresh };
  const again = useRef<() => Promise<void>>(async () => {});

  useEffect(() => {
    const abort = new AbortController();
    let running = false;
    let dirty = false;
    let last = 0;
    const read = async () => {
      if (running) {
        dirty = true;
        return;
      }
      running = true;
      dirty = false;
      try {
        // What is known so far is shown until the first answer is complete.
        const partly = (data: T) => {
          if (!last && !abort.signal.aborted) setState({ key, data, error: null });
        };
        const data = await latest.current.load(abort.signal, partly);
        if (!abort.signal.aborted) setState({ key, data, error: null });
      } catch (error) {
        if (abort.signal.aborted) return;
        if (error instanceof ApiError && error.kind === 'not_signed_in') ended();
        setState((old) => ({ key, data: old.key === key ? old.data : null, error }));
      } finally {
        running = false;
        last = Date.now();
      }
    };
    const tick = () => {
      if (running || !mayUpdate()) return;
      const wait = pace(latest.current.refresh.every);
      const age = Date.now() - last;
      if ((dirty && age >= (latest.current.refresh.gap ?? GAP_MS)) || (wait > 0 && age >= wait))
        void read();
    };
    const onChanges: Listener = (changes) => {
      const { on } = latest.current.refresh;
      if (on && changes.some((change) => ['ready', 'skipped'].includes(change.kind) || on(change)))
        dirty = true;
    };
    again.current = read;
    listeners.add(onChanges);
    const timer = setInterval(tick, 250);
    void read();
    return () => {
      abort.abort();
      listeners.delete(onChanges);
      clearInterval(timer);
    };
  }, [key]);

  const current = state.key === key ? state : { data: null, error: null };
  return { data: current.data, error: current.error, reload: () => again.current() };
}

/**
 * The milliseconds between two reads. Without a stream it is what the user has chosen, if that is
 * longer than what the page needs. Else, where reads cost, none comes sooner than counts change.
 */
function pace(wanted: number | undefined): number {
  if (wanted === 0) return 0;
  if (polls.peek() && interval.peek()) return Math.max(wanted ?? 0, interval.peek() * 1000);
  if (serverless.peek()) return Math.max(wanted ?? 0, POLL_COUNTED_MS);
  return wanted ?? (streaming.peek() ? POLL_STREAMED_MS : POLL_MS);
}
