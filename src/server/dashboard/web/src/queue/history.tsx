// The last hour or day of a queue, a type or a worker as charts.

import { get, optional, path } from '../api/client';
import type { History, WorkerHistory } from '../api/types';
import { clock, count, rate, span } from '../lib/format';
import { columnsOf, type Range, type Steps, smooth } from '../lib/history';
import type { Mark } from '../lib/marks';
import { href } from '../lib/route';
import { useMarks } from '../queue/marks';
import { now, useLoad } from '../state/live';
import { zone } from '../state/prefs';
import { go, route } from '../state/router';
import { Empty, Failed, Loading, Section } from '../ui/basics';
import { Chart, type Series } from '../ui/chart';

/** Changes that are listed below the charts. */
const LISTED = 6;

const RANGES: readonly Range[] = ['hour', 'day'];
/** A step of the day ends each five minutes. */
const DAY_EVERY_MS = 60_000;

/** How far back the charts go: the address has it. */
function rangeOf(): Range {
  return route.value?.query.get('range') === 'day' ? 'day' : 'hour';
}

/** The choice of how far back the charts go. */
function RangeChoice({ range }: { range: Range }) {
  const choose = (to: Range) => {
    const query = new URLSearchParams(route.value?.query);
    if (to === 'day') query.set('range', to);
    else query.delete('range');
    go(href(route.value?.parts ?? [], query), true);
  };
  return (
    <fieldset class="choice" aria-label="How far back">
      {RANGES.map((one) => (
        <button
          key={one}
          type="button"
          class="small"
          aria-pressed={one === range}
          onClick={() => choose(one)}
        >
          {one === 'hour' ? 'Hour' : 'Day'}
        </button>
      ))}
    </fieldset>
  );
}

/** The charts of a worker. */
export function WorkerHistorySection({ name }: { name: string }) {
  const range = rangeOf();
  const marks = useMarks('workers', name, range);
  const load = (signal: AbortSignal) =>
    get<WorkerHistory>(path`v1/workers/${name}/history`, { range }, signal);
  const every = range === 'day' ? { every: DAY_EVERY_MS } : {};
  const { data, error } = useLoad(`worker ${name} ${range}`, load, every);
  return (
    <Section title={`${name}: last ${range}`} side={<RangeChoice range={range} />}>
      <Failed error={error} what="the history of the worker" />
      {data ? (
        <WorkerCharts key={range} history={data} marks={marks} range={range} />
      ) : (
        !error && <Loading />
      )}
    </Section>
  );
}

/** The charts of a queue or a type, with a choice of how far back they go. The address keeps it. */
export function HistorySection(props: {
  kind: 'queues' | 'job-types';
  name: string;
  /** The address of its history. */
  at: string;
  hour: History;
}) {
  const { kind, name, at, hour } = props;
  const range = rangeOf();
  const marks = useMarks(kind, name, range);
  const load = (signal: AbortSignal) =>
    range === 'day' ? optional(get<History>(at, { range }, signal)) : Promise.resolve(null);
  const { data, error } = useLoad(`${at} ${range}`, load, { every: DAY_EVERY_MS });
  const shown = range === 'day' ? data : hour;
  return (
    <Section title={`Last ${range}`} side={<RangeChoice range={range} />}>
      <Failed error={error} what="the history of a day" />
      {shown ? (
        <HistoryCharts key={range} history={shown} marks={marks} range={range} />
      ) : (
        !error && <Loading />
      )}
    </Section>
  );
}

/** A note that there is nothing to draw yet. */
function NoSteps({ range }: { range: Range }) {
  return (
    <Empty>
      {range === 'day'
        ? 'Nothing is recorded of the last day. Its first step ends after five minutes.'
        : 'Nothing happened in the last hour.'}
    </Empty>
  );
}

interface ChartProps<T extends Steps> {
  history: T;
  marks: Mark[];
  range: Range;
}

/** The lines of charts: levels as they are, and rates as means of a minute, or of a longer step. */
function linesOf(history: Steps, range: Range) {
  const { x, of } = columnsOf(history, now.value, range);
  const line = (
    name: string,
    label: string,
    color: string,
    more: Partial<Series> = {},
  ): Series => ({ label, color, values: of[name] ?? [], ...more });
  const minute = Math.max(1, Math.round(60 / history.step_seconds));
  const rates = (name: string) => ({ values: smooth(of[name] ?? [], minute) });
  const some = (name: string) => of[name]?.some((value) => value !== null) ?? false;
  const mean = range === 'day' ? 'five minutes' : 'a minute';
  return { x, line, rates, some, mean };
}

/** The charts of a worker: what runs there, and what ended. */
function WorkerCharts({ history, marks, range }: ChartProps<WorkerHistory>) {
  if (!history.points.length) return <NoSteps range={range} />;
  const { x, line, rates, mean } = linesOf(history, range);
  return (
    <div class="charts">
      <Chart
        title="Running jobs"
        x={x}
        marks={marks}
        format={count}
        top={1}
        series={[line('running', 'running', 'running', { fill: true })]}
      />
      <Chart
        title={`Attempts that ended, mean of ${mean}`}
        x={x}
        marks={marks}
        format={rate}
        series={[
          line('finished', 'out', 'succeeded', { fill: true, ...rates('finished') }),
          line('failed', 'failed', 'failed', rates('failed')),
        ]}
      />
      <Changes marks={marks} />
    </div>
  );
}

/** The charts of a queue or a type. */
function HistoryCharts({ history, marks, range }: ChartProps<History>) {
  if (!history.points.length) return <NoSteps range={range} />;
  const { x, line, rates, some, mean } = linesOf(history, range);
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
        title={`Throughput, mean of ${mean}`}
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
