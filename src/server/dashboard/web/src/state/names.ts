// Names that fields complete: types, queues, workers, attributes.

import { all, optional } from '../api/client';
import type { JobType } from '../api/types';
import { type Load, useLoad } from './live';

/** The names that exist at the server. */
export interface Names {
  types: string[];
  queues: string[];
  workers: string[];
  attributes: string[];
  plugins: string[];
}

const EVERY_MS = 60_000;

async function names(to: string, list: string): Promise<string[]> {
  const items = await optional(all<{ name: string }>(to, list));
  return (items ?? []).map((item) => item.name);
}

/** Reads the names once a minute. */
export function useNames(): Load<Names> {
  const load = async (): Promise<Names> => {
    const [types, queues, workers, plugins] = await Promise.all([
      optional(all<JobType>('v1/job-types', 'job_types')),
      names('v1/queues', 'queues'),
      names('v1/workers', 'workers'),
      names('v1/plugins', 'plugins'),
    ]);
    const attributes = (types ?? []).flatMap((type) => Object.keys(type.attributes ?? {}));
    return {
      types: (types ?? []).map((type) => type.name),
      queues,
      workers,
      plugins,
      attributes: [...new Set(attributes)],
    };
  };
  return useLoad('names', load, { every: EVERY_MS });
}
