// The rows of the overview, and figures that are derived from them.

import type { History, HistoryPoint, OverviewMinute, Queue, QueueOverview } from '../api/types';
import { instant } from './format';

/** The minutes of a sparkline. */
export const MINUTES = 60;

/** The status of a queue is explained when it is read. */
const WHEN_READ = '1970-01-01T00:00:00.000Z';

/** Whether the server knows what holds the due jobs of a queue. Without due jobs it need not. */
export function isExplained(row: QueueOverview): boolean {
  return Boolean(row.explained_at) || !row.phases.ready;
}

const NO_THROUGHPUT = { over_seconds: 0, finished_per_second: 0, failed_per_second: 0 };

/** A queue of the list of queues as a row of the overview, with its history if it was read. */
export function rowOf(queue: Queue, history: History | null): QueueOverview {
  const status = queue.status;
  return {
    name: queue.name,
    paused: queue.paused,
    concurrency: queue.concurrency ?? null,
    phases: status?.phases ?? {},
    counted_at: status?.counted_at ?? null,
    depth_at_least: status?.depth_at_least ?? false,
    running_weight: status?.running_weight ?? 0,
    oldest_due_at: status?.oldest_due_at ?? null,
    held: status?.held ?? [],
    desired_workers: status?.desired_workers ?? 0,
    explained_at: status ? WHEN_READ : null,
    workers: status?.workers ?? 0,
    throughput: history?.throughput ?? NO_THROUGHPUT,
    time_to_empty_seconds: history?.time_to_empty_seconds ?? null,
    start_delay_seconds: latestDelay(history?.points ?? []),
    minutes: minutesOf(history?.points ?? []),
  };
}

/** The start delay of the latest step that has one. */
function latestDelay(points: HistoryPoint[]) {
  return points.findLast((point) => point.start_delay_seconds)?.start_delay_seconds ?? null;
}

/** Steps of a history, added up to minutes. */
export function minutesOf(points: HistoryPoint[]): OverviewMinute[] {
  const minutes = new Map<string, OverviewMinute>();
  for (const point of points) {
    const at = `${point.at.slice(0, 16)}:00.000Z`;
    const old = minutes.get(at);
    minutes.set(at, {
      at,
      enqueued: (old?.enqueued ?? 0) + (point.enqueued ?? 0),
      finished: (old?.finished ?? 0) + point.finished,
      failed: (old?.failed ?? 0) + point.failed,
      ready: point.ready,
      running: point.running,
    });
  }
  return [...minutes.values()];
}

/** Where a minute lies among the last 60, from 0; null if it is older. */
export function minuteIndex(at: string, now: number): number | null {
  const time = instant(at);
  if (time === null) return null;
  const index = MINUTES - 1 - Math.floor((now - time) / 60_000);
  return index >= 0 && index < MINUTES ? index : null;
}

/** The share of ended jobs that failed; null if none ended. */
export function failureShare(row: QueueOverview): number | null {
  const finished = row.throughput.finished_per_second ?? 0;
  return finished > 0 ? (row.throughput.failed_per_second ?? 0) / finished : null;
}

/** Sums over all queues, for the head of the overview. */
export function totals(rows: readonly QueueOverview[]) {
  const sum = (of: (row: QueueOverview) => number | null | undefined) =>
    rows.reduce((all, row) => all + (of(row) ?? 0), 0);
  const oldest = rows.map((row) => row.oldest_due_at).filter((at) => typeof at === 'string');
  return {
    ready: sum((row) => row.phases.ready),
    running: sum((row) => row.phases.running),
    retrying: sum((row) => row.phases.retrying),
    failed: sum((row) => row.phases.failed),
    inPerSecond: sum((row) => row.throughput.enqueued_per_second),
    outPerSecond: sum((row) => row.throughput.finished_per_second),
    oldest: oldest.sort()[0] ?? null,
    paused: rows.filter((row) => row.paused).length,
  };
}
