import { defineConfig } from 'vitest/config';
import { notices } from './notices.ts';

// The server serves three files under fixed names. The build has no hashes, no source maps and no
// time stamps, so that the same sources give the same bytes.
export default defineConfig({
  base: './',
  build: {
    outDir: process.env.CONSOLE_DIST ?? '../dist',
    emptyOutDir: true,
    target: 'es2022',
    cssTarget: ['chrome123', 'firefox121', 'safari17.5'],
    cssCodeSplit: false,
    modulePreload: false,
    assetsInlineLimit: 0,
    sourcemap: false,
    reportCompressedSize: false,
    rolldownOptions: {
      output: {
        entryFileNames: 'console.js',
        assetFileNames: 'console[extname]',
        codeSplitting: false,
        postBanner: notices,
      },
    },
  },
  server: {
    proxy: Object.fromEntries(
      ['/v1', '/openapi.json', '/healthz', '/metrics', '/console'].map((path) => [
        path,
        process.env.TIDEGATE_URL ?? 'http://127.0.0.1:8080',
      ]),
    ),
  },
  test: { include: ['test/**/*.test.ts'], environment: 'node' },
});
