// The versions of the installed packages.

import { readFileSync } from 'node:fs';

const { packages } = JSON.parse(readFileSync(new URL('package-lock.json', import.meta.url), 'utf8'));

/** The version of a package in the lock file. */
export function version(name) {
  return packages[`node_modules/${name}`].version;
}
