// The last hour of a queue or a type as charts.

import type { History } from '../api/types';
import { clock, count, rate, span } from '../lib/format';
import { columnsOf, smooth } from '../lib/history';
import type { Mark } from '../lib/marks';
import { now } from '../state/live';
import { zone } from '../state/prefs';
import { Empty } from '../ui/basics';
import { Chart, type Series } from '../ui/chart';

/** Changes that are listed below the charts. */
const LISTED = 6;

/** The charts. */
export function HistoryCharts({ history, marks }: { history: History; marks: Mark[] }) {
  if (!history.points.length) return <Empty>Nothing happened in the last hour.</Empty>;
  const { x, of } = columnsOf(history, now.value);
  const line = (
    name: string,
    label: string,
    color: string,
    more: Partial<Series> = {},
  ): Series => ({ label, color, values: of[name] ?? [], ...more });
  const minute = Math.max(1, Math.round(60 / history.step_seconds));
  const rates = (name: string) => ({ values: smooth(of[name] ?? [], minute) });
  const some = (name: string) => of[name]?.some((value) => value !== null) ?? false;
  return (
    <div class="charts">
      <Chart
        title="Jobs"
        x={x}
        marks={marks}
        format={count}
        top={1}
        series={[
          line('ready', 'ready', 'ready', { fill: true }),
          line('retrying', 'retrying', 'retrying'),
          line('running', 'running', 'running'),
          line('scheduled', 'later', 'scheduled'),
        ]}
      />
      <Chart
        title="Throughput, mean of a minute"
        x={x}
        marks={marks}
        format={rate}
        series={[
          line('enqueued', 'in', 'scheduled', rates('enqueued')),
          line('finished', 'out', 'succeeded', { fill: true, ...rates('finished') }),
          line('failed', 'failed', 'failed', rates('failed')),
        ]}
      />
      {some('delay_p50') && (
        <Chart
          title="Start delay"
          x={x}
          marks={marks}
          format={span}
          series={[
            line('delay_p50', 'p50', 'ready'),
            line('delay_p95', 'p95', 'retrying'),
            line('delay_p99', 'p99', 'failed'),
          ]}
        />
      )}
      {some('run_p50') && (
        <Chart
          title="Run time"
          x={x}
          marks={marks}
          format={span}
          series={[
            line('run_p50', 'p50', 'running'),
            line('run_p95', 'p95', 'retrying'),
            line('run_p99', 'p99', 'failed'),
          ]}
        />
      )}
      {(some('limit') || some('weight')) && (
        <Chart
          title="Running weight and limit"
          x={x}
          marks={marks}
          format={count}
          series={[
            line('weight', 'weight', 'running', { fill: true }),
            line('limit', 'limit', 'failed', { dash: true }),
          ]}
        />
      )}
      <Changes marks={marks} />
    </div>
  );
}

/** What the marks are. */
function Changes({ marks }: { marks: Mark[] }) {
  if (!marks.length) return null;
  return (
    <ul class="plain marks" aria-label="Changes, dashed in the charts">
      {marks.slice(-LISTED).map((mark) => (
        <li key={`${mark.x} ${mark.text}`}>
          <span class="num">{clock(mark.x, zone.value, true)}</span> <bdi>{mark.text}</bdi>
        </li>
      ))}
    </ul>
  );
}
