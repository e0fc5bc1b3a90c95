// The notices of the libraries that are part of the built files, as their licence requires.

import { readFileSync } from 'node:fs';

const LIBRARIES = ['preact', '@preact/signals', '@preact/signals-core', 'uplot'];

/** A comment with the copyright of each library, and the text of the licence that all of them have. */
export function notices(): string {
  const licences = LIBRARIES.map((name) => readFileSync(`node_modules/${name}/LICENSE`, 'utf8'));
  const holders = licences.map((text, at) => {
    const copyright = /Copyright.*/.exec(text)?.[0];
    if (!copyright || !text.includes('Permission is hereby granted, free of charge')) {
      throw new Error(`${LIBRARIES[at]} has another licence than MIT`);
    }
    return `${LIBRARIES[at]}: ${copyright.trim()}`;
  });
  const [first = ''] = licences;
  const permission = first.slice(first.indexOf('Permission is hereby granted')).trim();
  return `/*!\nThis file contains libraries under the MIT licence:\n${holders.join('\n')}\n\n${permission}\n*/`;
}
