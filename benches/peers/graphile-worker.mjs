// graphile-worker: a local queue, and completion in batches.

import { Logger, makeWorkerUtils, run } from 'graphile-worker';
import { version } from './versions.mjs';

const TASK = 'bench';

export class GraphileWorker {
  static title = `graphile-worker ${version('graphile-worker')}`;
  static schema = 'tidegate_bench_graphile';
  #options;
  #pool;
  #utils;

  static async open(connectionString, pool) {
    const peer = new GraphileWorker();
    peer.#pool = pool;
    peer.#options = {
      connectionString,
      schema: GraphileWorker.schema,
      logger: new Logger(() => () => {}),
      preset: { worker: { maxPoolSize: 25 } },
    };
    peer.#utils = await makeWorkerUtils(peer.#options);
    await peer.#utils.migrate();
    return peer;
  }

  add(data) {
    return this.#utils.addJob(TASK, data);
  }

  addAll(batch) {
    return this.#utils.addJobs(batch.map((payload) => ({ identifier: TASK, payload })));
  }

  /** Calls `handle` for each job. Returns what stops it. */
  async work(handle) {
    const worker = {
      maxPoolSize: 25,
      concurrentJobs: 24,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    };
    const runner = await run({
      ...this.#options,
      preset: { worker },
      noHandleSignals: true,
      taskList: { [TASK]: async () => handle() },
    });
    return () => runner.stop();
  }

  async unfinished() {
    const sql = `SELECT count(*)::int AS jobs FROM ${GraphileWorker.schema}._private_jobs`;
    const { rows } = await this.#pool.query(sql);
    return rows[0].jobs;
  }

  close() {
    return this.#utils.release();
  }
}
