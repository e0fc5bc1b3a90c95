// pg-boss: batches of jobs, each of which succeeds or fails as a whole.

import { PgBoss } from 'pg-boss';
import { version } from './versions.mjs';

const QUEUE = 'bench';

export class PgBossQueue {
  static title = `pg-boss ${version('pg-boss')}`;
  static schema = 'tidegate_bench_pg_boss';
  #boss;
  #pool;

  static async open(connectionString, pool) {
    const peer = new PgBossQueue();
    peer.#pool = pool;
    peer.#boss = new PgBoss({ connectionString, schema: PgBossQueue.schema, max: 20 });
    peer.#boss.on('error', (error) => {
      throw error;
    });
    await peer.#boss.start();
    await peer.#boss.createQueue(QUEUE);
    return peer;
  }

  add(data) {
    return this.#boss.send(QUEUE, data);
  }

  addAll(batch) {
    return this.#boss.insert(QUEUE, batch.map((data) => ({ data })));
  }

  /** Calls `handle` for each job. Returns what stops it. */
  async work(handle) {
    const options = {
      batchSize: 250,
      localConcurrency: 4,
      pollingIntervalSeconds: 0.5,
      burstWhenBatchFull: true,
    };
    await this.#boss.work(QUEUE, options, async (jobs) => jobs.forEach(() => handle()));
    return () => this.#boss.offWork(QUEUE);
  }

  async unfinished() {
    const sql = `SELECT count(*)::int AS jobs FROM ${PgBossQueue.schema}.job WHERE name = $1 AND state < 'completed'`;
    const { rows } = await this.#pool.query(sql, [QUEUE]);
    return rows[0].jobs;
  }

  close() {
    return this.#boss.stop({ graceful: false, close: true });
  }
}
