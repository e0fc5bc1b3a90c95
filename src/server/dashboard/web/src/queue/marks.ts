// Changes of a queue's settings as marks on its charts: what a limit did is seen where it was changed.

import { get, optional, serverNow } from '../api/client';
import { isAdmin } from '../api/session';
import type { AuditPage } from '../api/types';
import { RANGE_SECONDS, type Range } from '../lib/history';
import { type Mark, marksOf } from '../lib/marks';
import { encode } from '../lib/route';
import { useLoad } from '../state/live';

const EVERY_MS = 30_000;
const READ = 500;

/** The changes of a queue, a type or a worker. Only admin reads the audit log; everyone else gets none. */
export function useMarks(
  kind: 'queues' | 'job-types' | 'workers',
  name: string,
  range: Range,
): Mark[] {
  const admin = isAdmin.value;
  const load = (signal: AbortSignal) =>
    admin ? optional(get<AuditPage>('v1/audit', { limit: READ }, signal)) : Promise.resolve(null);
  const { data } = useLoad(`marks ${admin}`, load, { every: EVERY_MS });
  const path = `/v1/${kind}/${encode(name)}`;
  return marksOf(data?.entries ?? [], path, serverNow(), RANGE_SECONDS[range]);
}
