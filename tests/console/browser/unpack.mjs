// Unpacks the Chromium of the npm package into a folder, and writes a script there that starts it.
//
//   TMPDIR=FOLDER node unpack.mjs
//
// The package has the shared libraries and fonts that a small system lacks; the script names them.

import { chmod, writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import chromium, { inflate } from '@sparticuz/chromium';

const folder = tmpdir();
const program = await chromium.executablePath();
const build = dirname(createRequire(import.meta.url).resolve('@sparticuz/chromium'));
await inflate(join(build, '..', 'bin', 'al2023.tar.br'));
if (dirname(program) !== folder) throw new Error(`Chromium is in ${program}, not in ${folder}`);

const fonts = `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>${folder}/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>${folder}/fonts-cache</cachedir>
</fontconfig>
`;
const start = `#!/bin/sh
export LD_LIBRARY_PATH="${folder}/al2023/lib" FONTCONFIG_PATH="${folder}/fonts"
exec "${folder}/chromium" "$@"
`;
await writeFile(join(folder, 'fonts', 'fonts.conf'), fonts);
// The last file: where it is, all others are complete.
const script = join(folder, 'browser');
await writeFile(script, start);
await chmod(script, 0o755);
