// Keys: / searches, j and k move, g and a letter goes to a page, ? helps.

import { useEffect } from 'preact/hooks';
import { paused } from '../state/live';
import { zone } from '../state/prefs';
import { go } from '../state/router';
import { PAGES } from './shell';

/** How long `g` waits for its letter. */
const CHORD_MS = 1500;

/** The keys, for the help. */
export const KEYS: readonly [string, string][] = [
  ['/', 'Search'],
  ['j, k', 'Next and previous row'],
  ['Enter', 'Open the row'],
  ['x', 'Select the row'],
  ['p', 'Pause or resume updates'],
  ['z', 'Times in UTC or local'],
  ['?', 'This help'],
  ['Escape', 'Close a dialog'],
];

/** Listens to keys while no field has the focus and no dialog is open. */
export function useKeys(help: () => void): void {
  useEffect(() => {
    let chord = 0;
    const press = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
      if (document.querySelector('dialog[open]')) return;
      const { key } = event;
      const page = Date.now() - chord < CHORD_MS ? PAGES.find((one) => one.key === key) : undefined;
      chord = 0;
      if (page) go(`#/${page.to}`);
      else if (key === 'g') chord = Date.now();
      else if (!act(key, help)) return;
      event.preventDefault();
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
}

function typing(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return target.type !== 'checkbox';
  return target.matches('textarea, select, [contenteditable]');
}

function act(key: string, help: () => void): boolean {
  if (key === '/') document.querySelector<HTMLInputElement>('#search')?.focus();
  else if (key === '?') help();
  else if (key === 'p') paused.value = !paused.peek();
  else if (key === 'z') zone.value = zone.peek() === 'utc' ? 'local' : 'utc';
  else if (key === 'j' || key === 'k') move(key === 'j' ? 1 : -1);
  else if (key === 'x') focused()?.querySelector<HTMLInputElement>('.pick input')?.click();
  else return false;
  return true;
}

function focused(): Element | null {
  return document.activeElement?.closest('[data-row]') ?? null;
}

/** Moves the focus to the first link or button of the next row. */
function move(by: number): void {
  const rows = [...document.querySelectorAll('main [data-row]')];
  const current = focused();
  const at = current ? rows.indexOf(current) + by : by > 0 ? 0 : rows.length - 1;
  const row = rows[Math.max(0, Math.min(rows.length - 1, at))];
  const target = row?.querySelector<HTMLElement>('a, button, summary');
  target?.focus();
  row?.scrollIntoView({ block: 'nearest' });
}
