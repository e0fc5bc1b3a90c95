// The place that the address bar names.

import { signal } from '@preact/signals';
import { parse, type Route } from '../lib/route';

/** The shown place; null if the address is malformed. */
export const route = signal<Route | null>(parse(location.hash));

addEventListener('hashchange', () => {
  route.value = parse(location.hash);
});

/** Goes to a place. With `replace` the browser's Back skips the present one. */
export function go(hash: string, replace = false): void {
  if (replace) {
    history.replaceState(null, '', hash);
    route.value = parse(hash);
  } else location.hash = hash;
}
