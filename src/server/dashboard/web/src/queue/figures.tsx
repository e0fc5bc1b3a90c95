// The counts and rates of a queue in a line.

import type { History, Queue } from '../api/types';
import { count, rate, span } from '../lib/format';
import { href } from '../lib/route';

/** The figures; counts lead to their jobs. */
export function Phases({ queue, history }: { queue: Queue; history: History | null }) {
  const { status } = queue;
  const phases = status?.phases ?? {};
  const shown = ['ready', 'running', 'retrying', 'scheduled', 'failed', 'succeeded'];
  const rates = history?.throughput;
  const delay = history?.points.findLast((point) => point.start_delay_seconds)?.start_delay_seconds;
  return (
    <ul class="figures" aria-label="Jobs">
      {shown.map((phase) => (
        <li key={phase} class={phase === 'failed' && phases[phase] ? 'bad' : ''}>
          <a href={href(['jobs'], { queue: queue.name, phase })}>
            <b>
              {count(phases[phase] ?? 0)}
              {status?.depth_at_least ? '+' : ''}
            </b>{' '}
            {phase === 'scheduled' ? 'later' : phase}
          </a>
        </li>
      ))}
      {rates && (
        <li>
          <b>{rate(rates.enqueued_per_second)}</b> in
        </li>
      )}
      {rates && (
        <li>
          <b>{rate(rates.finished_per_second)}</b> out
        </li>
      )}
      {delay && (
        <li>
          <b>
            {span(delay.p50)} · {span(delay.p99)}
          </b>{' '}
          start delay p50 · p99
        </li>
      )}
      {typeof history?.time_to_empty_seconds === 'number' && (
        <li>
          <b>{span(history.time_to_empty_seconds)}</b> to empty
        </li>
      )}
      <li>
        <b>{count(status?.running_weight ?? 0)}</b> weight of{' '}
        {typeof queue.concurrency === 'number' ? count(queue.concurrency) : 'no limit'}
      </li>
    </ul>
  );
}
