// What the user has chosen in this browser.

import { effect, type Signal, signal } from '@preact/signals';
import type { Zone } from '../lib/format';

const BASE = new URL('.', location.href).pathname;

/** A signal that is kept in the browser. Unreadable values count as absent. */
export function stored<T>(
  name: string,
  usual: T,
  valid: (value: unknown) => value is T,
): Signal<T> {
  const key = `tidegate ${BASE}${name}`;
  const kept = signal(read(key, usual, valid));
  effect(() => {
    try {
      localStorage.setItem(key, JSON.stringify(kept.value));
    } catch {
      // Private windows may refuse to keep anything.
    }
  });
  return kept;
}

function read<T>(key: string, usual: T, valid: (value: unknown) => value is T): T {
  try {
    const value: unknown = JSON.parse(localStorage.getItem(key) ?? 'null');
    return valid(value) ? value : usual;
  } catch {
    return usual;
  }
}

/** A test for one of some words. */
export function oneOf<T extends string>(...words: T[]) {
  return (value: unknown): value is T => words.includes(value as T);
}

/** In which zone instants are shown. */
export const zone = stored<Zone>('zone', 'local', oneOf('utc', 'local'));

/** Light, dark, or as the system. */
export type Theme = 'auto' | 'light' | 'dark';
export const theme = stored<Theme>('theme', 'auto', oneOf('auto', 'light', 'dark'));

effect(() => {
  const root = document.documentElement;
  if (theme.value === 'auto') delete root.dataset.theme;
  else root.dataset.theme = theme.value;
});

/** The seconds between two reads, where the console polls; 0: the usual ones. */
export const INTERVALS = [0, 2, 5, 10, 30, 60, 300] as const;

/** The chosen one. */
export const interval = stored<number>(
  'interval',
  0,
  (value): value is number => typeof value === 'number' && INTERVALS.some((one) => one === value),
);

/** A filter of jobs under a name. */
export interface View {
  name: string;
  query: string;
}

const isViews = (value: unknown): value is View[] =>
  Array.isArray(value) &&
  value.every(
    (one: Partial<View> | null) => typeof one?.name === 'string' && typeof one.query === 'string',
  );

/** The saved filters of jobs. */
export const views = stored<View[]>('views', [], isViews);

const isWords = (value: unknown): value is string[] =>
  Array.isArray(value) && value.every((word) => typeof word === 'string');

/** The columns of the list of jobs that are shown in addition to the id. */
export const columns = stored<string[]>(
  'columns',
  ['type', 'queue', 'phase', 'attempt', 'error', 'duration', 'attributes', 'when'],
  isWords,
);

/** How many jobs a page may show. */
export const PAGE_SIZES = [20, 50, 100, 200] as const;

/** How many jobs a page shows. */
export const pageSize = stored<number>(
  'page-size',
  50,
  (value): value is number =>
    typeof value === 'number' && PAGE_SIZES.some((size) => size === value),
);
