// Measures other job queues on Postgres, and prints a line of JSON for each rate: see `measure`.

import pg from 'pg';
import { GraphileWorker } from './graphile-worker.mjs';
import { PgBossQueue } from './pg-boss.mjs';

const PEERS = [PgBossQueue, GraphileWorker];
/** As many calls at once as tidegate has connections. */
const CALLS = { enqueue: 64, batch: 4 };
const BATCH = 1000;
/** The data of each job, which tidegate's have too. */
const DATA = {
  customer: 'c-104729',
  amount: 1299,
  currency: 'EUR',
  items: ['a-1', 'b-2', 'c-3'],
  note: 'bench',
};

const store = process.env.TIDEGATE_BENCH_STORE;
const seconds = Number(process.env.TIDEGATE_BENCH_SECONDS ?? 5);
const jobs = Number(process.env.TIDEGATE_BENCH_JOBS ?? 30_000);

/** Jobs per second of `call`, which enqueues `size` jobs, `calls` at once. */
async function rate(calls, size, call, duration) {
  const start = performance.now();
  let done = 0;
  await Promise.all(
    Array.from({ length: calls }, async () => {
      while (performance.now() - start < duration * 1000) {
        await call();
        done += size;
      }
    }),
  );
  return (done * 1000) / (performance.now() - start);
}

/** The jobs that handlers have begun. */
class Handled {
  #left;
  #all = Promise.withResolvers();
  start = 0;

  constructor(number) {
    this.#left = number;
  }

  one() {
    this.start ||= performance.now();
    this.#left -= 1;
    if (this.#left === 0) this.#all.resolve();
  }

  get all() {
    return this.#all.promise;
  }
}

const MEASURES = {
  async enqueue(peer) {
    await rate(CALLS.enqueue, 1, () => peer.add(DATA), seconds / 10);
    return rate(CALLS.enqueue, 1, () => peer.add(DATA), seconds);
  },
  async batch(peer) {
    const batch = Array(BATCH).fill(DATA);
    await rate(CALLS.batch, BATCH, () => peer.addAll(batch), seconds / 10);
    return rate(CALLS.batch, BATCH, () => peer.addAll(batch), seconds);
  },
  // From the start of the first job to the record of the last.
  async drain(peer) {
    for (let left = jobs; left > 0; left -= BATCH) {
      await peer.addAll(Array(Math.min(left, BATCH)).fill(DATA));
    }
    const handled = new Handled(jobs);
    const stop = await peer.work(() => handled.one());
    await handled.all;
    while ((await peer.unfinished()) > 0) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    const duration = performance.now() - handled.start;
    await stop();
    return (jobs * 1000) / duration;
  },
};

/** Takes a measurement on an empty schema. */
async function measure(pool, Peer, name) {
  const drop = () => pool.query(`DROP SCHEMA IF EXISTS ${Peer.schema} CASCADE`);
  await drop();
  const peer = await Peer.open(store, pool);
  try {
    return await MEASURES[name](peer);
  } finally {
    await peer.close();
    await drop();
  }
}

const names = process.argv.slice(2);
const unknown = names.find((name) => !(name in MEASURES));
if (!store || names.length === 0 || unknown) {
  console.error(
    `TIDEGATE_BENCH_STORE must be set, and the arguments be some of ${Object.keys(MEASURES).join(', ')}`,
  );
  process.exit(2);
}
const pool = new pg.Pool({ connectionString: store, max: 2 });
try {
  for (const Peer of PEERS) {
    for (const name of names) {
      const jobsPerSecond = await measure(pool, Peer, name);
      console.log(JSON.stringify({ peer: Peer.title, measure: name, jobs_per_second: jobsPerSecond }));
    }
  }
} finally {
  await pool.end();
}
