// Real servers for the tests, and a proxy that serves the built console where a program has another one.

import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm } from 'node:fs/promises';
import { createServer, request as forward } from 'node:http';
import { createServer as listen } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** The policy that the server sends with the console. */
export const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
  "frame-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'";

const FILES = {
  '/': ['index.html', 'text/html'],
  '/console.js': ['console.js', 'text/javascript'],
  '/console.css': ['console.css', 'text/css'],
};
const START_MS = 20_000;

/** Waits until `done` gives something; an error after `ms`. */
export async function until(what, done, ms = 10_000) {
  const end = Date.now() + ms;
  let latest;
  while (Date.now() < end) {
    try {
      const value = await done();
      if (value) return value;
    } catch (error) {
      latest = error;
    }
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  throw new Error(`${what}: not within ${ms} ms${latest ? `: ${latest.message}` : ''}`);
}

/** A port that is free now. */
export async function freePort() {
  const probe = listen();
  await new Promise((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return port;
}

/** A call of the API. Answers the value; an error if it is refused. */
export async function call(base, method, path, body, token) {
  const headers = { accept: 'application/json' };
  if (body !== undefined) headers['content-type'] = 'application/json';
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = await fetch(`${base}${path}`, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${text}`);
  return text ? JSON.parse(text) : null;
}

const programs = new Set();
process.once('exit', () => {
  for (const program of programs) program.child.kill('SIGKILL');
});

/** A process that this test started. It ends with the test, even if nothing stops it. */
export class Program {
  constructor(program, args, env = {}) {
    this.start = () => {
      this.output = '';
      this.child = spawn(program, args, {
        stdio: ['ignore', 'pipe', 'pipe'],
        env: { ...process.env, ...env },
      });
      this.ended = new Promise((resolve) => this.child.once('exit', resolve));
      for (const stream of [this.child.stdout, this.child.stderr]) {
        stream.on('data', (piece) => {
          this.output = (this.output + piece).slice(-20_000);
        });
      }
    };
    this.start();
    programs.add(this);
  }

  /** Ends the process, and waits for that. */
  async stop(signal = 'SIGKILL') {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill(signal);
    await this.ended;
  }
}

/** A server with a data directory of its own. `api` is its address, `url` that of the console. */
export async function serve(
  program,
  dist,
  { args = ['serve'], env = {}, flag = '--listen', folder = '--data' } = {},
) {
  const data = await mkdtemp(join(tmpdir(), 'tidegate-console-'));
  const port = await freePort();
  const place = flag === '--listen' ? `127.0.0.1:${port}` : String(port);
  const server = new Program(program, [...args, flag, place, folder, data], {
    TIDEGATE_LOG_LEVEL: 'error',
    ...env,
  });
  const api = `http://127.0.0.1:${port}`;
  await until(
    `the server at ${api}`,
    async () => (await fetch(`${api}/readyz`)).ok,
    START_MS,
  ).catch((error) => {
    throw new Error(`${error.message}\n${server.output}`);
  });
  const proxy = (await serves(api, dist)) ? null : await startProxy(api, dist);
  return {
    api,
    url: proxy?.url ?? api,
    proxied: proxy !== null,
    kill: () => server.stop('SIGKILL'),
    again: async () => {
      server.start();
      await until('the server is back', async () => (await fetch(`${api}/readyz`)).ok, START_MS);
    },
    stop: async () => {
      await proxy?.stop();
      await server.stop('SIGKILL');
      await rm(data, { recursive: true, force: true });
    },
  };
}

/** Whether the program has the console of `dist`. */
async function serves(api, dist) {
  const answer = await fetch(`${api}/console.js`);
  return answer.ok && (await answer.text()) === (await readFile(join(dist, 'console.js'), 'utf8'));
}

/** Serves `dist` below `prefix`, which it strips, and passes everything else on to the server at `api`. */
export async function startProxy(api, dist, prefix = '') {
  const files = createServer(async (incoming, outgoing) => {
    if (!incoming.url.startsWith(`${prefix}/`)) {
      outgoing.writeHead(404).end();
      return;
    }
    const to = incoming.url.slice(prefix.length);
    const file = FILES[new URL(to, 'http://localhost').pathname];
    if (file) {
      outgoing.writeHead(200, {
        'content-type': `${file[1]}; charset=utf-8`,
        'content-security-policy': POLICY,
        'cache-control': 'no-cache',
      });
      outgoing.end(await readFile(join(dist, file[0])));
      return;
    }
    const { host, origin, referer, ...headers } = incoming.headers;
    const further = forward(`${api}${to}`, { method: incoming.method, headers }, (answer) => {
      outgoing.writeHead(answer.statusCode, answer.headers);
      answer.on('error', () => outgoing.destroy());
      answer.pipe(outgoing);
    });
    further.on('error', () => outgoing.destroy());
    outgoing.on('close', () => further.destroy());
    incoming.pipe(further);
  });
  await new Promise((resolve) => files.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${files.address().port}${prefix}`,
    stop: () => {
      files.closeAllConnections();
      return new Promise((resolve) => files.close(resolve));
    },
  };
}
