// The history of a queue, a type or a worker as the columns of charts.

import type { HistoryPoint, Quantiles } from '../api/types';
import { instant } from './format';

/** Values over time: the instants in seconds, and one list of values per name. */
export interface Columns {
  x: number[];
  of: Record<string, (number | null)[]>;
}

/** A step of a history. Workers have some of its numbers. */
export type Step = Pick<HistoryPoint, 'at' | 'finished' | 'failed' | 'running'> &
  Partial<HistoryPoint>;

/** What the histories of queues, types and workers have in common. */
export interface Steps {
  step_seconds: number;
  from?: string | null | undefined;
  points: readonly Step[];
}

/** How far back charts go. */
export type Range = 'hour' | 'day';
export const RANGE_SECONDS: Record<Range, number> = { hour: 3600, day: 86_400 };

/** The least steps of a picture. */
const LEAST = 12;

/** What of a step belongs to the jobs that wait or run at its end. */
const LEVELS = ['scheduled', 'ready', 'retrying', 'running', 'weight', 'limit'] as const;

/** The columns of a history. Steps that were left out repeat the jobs of the step before, without events. */
export function columnsOf(history: Steps, now: number, range: Range = 'hour'): Columns {
  const step = history.step_seconds;
  const first = instant(history.from) ?? instant(history.points[0]?.at) ?? now;
  const end = Math.floor(now / 1000 / step) * step;
  const begin = Math.max(Math.floor(first / 1000 / step) * step, end - RANGE_SECONDS[range]);
  // A picture needs some width, also right after the first start.
  const start = Math.min(begin, end - LEAST * step);
  const points = new Map(
    history.points.map((point) => [Math.round((instant(point.at) ?? 0) / 1000), point]),
  );
  const before = history.points.findLast((point) => (instant(point.at) ?? 0) / 1000 < start);
  return fill(points, before, start, end, step, begin);
}

function fill(
  points: Map<number, Step>,
  before: Step | undefined,
  start: number,
  end: number,
  step: number,
  begin: number,
): Columns {
  const x: number[] = [];
  const of: Columns['of'] = {};
  const put = (name: string, value: number | null | undefined) => {
    of[name] ??= [];
    of[name].push(value ?? null);
  };
  let latest = before;
  for (let at = start; at < end; at += step) {
    const point = points.get(at);
    latest = point ?? latest;
    x.push(at);
    for (const name of LEVELS) put(name, latest ? latest[name] : null);
    put('enqueued', at < begin ? null : (point?.enqueued ?? 0) / step);
    put('finished', at < begin ? null : (point?.finished ?? 0) / step);
    put('failed', at < begin ? null : (point?.failed ?? 0) / step);
    quantiles(put, 'delay', point?.start_delay_seconds);
    quantiles(put, 'run', point?.run_seconds);
  }
  return { x, of };
}

function quantiles(
  put: (name: string, value: number | null | undefined) => void,
  name: string,
  values: Quantiles | null | undefined,
) {
  for (const q of ['p50', 'p95', 'p99'] as const) put(`${name}_${q}`, values?.[q]);
}

/** The mean of each value and those before it, `steps` in all: rates of single steps jump. */
export function smooth(values: (number | null)[], steps: number): (number | null)[] {
  return values.map((value, at) => {
    if (value === null) return null;
    const near = values.slice(Math.max(0, at - steps + 1), at + 1).filter((one) => one !== null);
    return near.reduce((sum, one) => sum + one, 0) / near.length;
  });
}
