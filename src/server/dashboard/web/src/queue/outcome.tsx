// The outcome of a simulation: numbers and pictures side by side.

import type { Simulated, SimulatedRun } from '../api/types';
import { count, percent, plural, rate, span } from '../lib/format';
import { href } from '../lib/route';
import { Chart } from '../ui/chart';
import { Table } from '../ui/table';

interface Figure {
  name: string;
  of: (run: SimulatedRun) => string;
}

const FIGURES: Figure[] = [
  { name: 'Finished', of: (run) => count(run.finished) },
  { name: 'Failed', of: (run) => count(run.failed) },
  { name: 'Expired', of: (run) => count(run.expired) },
  { name: 'Start delay p50', of: (run) => span(run.start_delay_seconds?.p50) },
  { name: 'Start delay p99', of: (run) => span(run.start_delay_seconds?.p99) },
  { name: 'Run time p50', of: (run) => span(run.run_seconds?.p50) },
  { name: 'Throughput', of: (run) => rate(run.throughput_per_second) },
  { name: 'Used of the limit', of: (run) => percent(run.utilization) },
  { name: 'Drained after', of: (run) => span(run.drained_after_seconds) },
];

/** What the server takes if the recorded jobs do not show how many more their workers can run. */
const UNKNOWN_WORKERS = 10_000;

/** The outcome. `workers` is how many jobs at once at the workers the user has chosen. */
export function Outcome({ found, workers }: { found: Simulated; workers: number | null }) {
  const isUnknown = workers === null && found.workers === UNKNOWN_WORKERS;
  const runs: [string, SimulatedRun][] = [
    ...(found.recorded ? [['As it was', found.recorded] satisfies [string, SimulatedRun]] : []),
    ['Simulated, present settings', found.current],
    ['Simulated, changed settings', found.changed],
  ];
  const levels = runs.flatMap(([, run]) => run.series.points);
  const top = Math.max(1, ...levels.flatMap((one) => [one.waiting, one.running, one.limit ?? 0]));
  return (
    <div class="outcome">
      <p>
        {plural(found.jobs, 'job')} simulated,{' '}
        {isUnknown
          ? 'as many at once as the limits allow: how many more the workers can run is not known'
          : `at most ${count(found.workers)} at once at the workers`}
        {found.stopped_early && ', stopped after ten seconds'}.
        {found.left_out.map(({ reason, jobs }) => (
          <span key={reason}>
            {' '}
            Left out: {typeof jobs === 'number' && `${plural(jobs, 'job')}, `}
            {reason}.
          </span>
        ))}
      </p>
      <table class="compare">
        <thead>
          <tr>
            <td />
            {runs.map(([name]) => (
              <th key={name} scope="col">
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {FIGURES.map((figure) => (
            <tr key={figure.name}>
              <th scope="row">{figure.name}</th>
              {runs.map(([name, run]) => (
                <td key={name} class="num" data-label={name}>
                  {figure.of(run)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      <div class="charts three">
        {runs.map(([name, run]) => (
          <Chart
            key={name}
            title={name}
            elapsed
            top={top}
            x={run.series.points.map((point) => point.at)}
            format={count}
            series={[
              {
                label: 'waiting',
                color: 'ready',
                values: run.series.points.map((point) => point.waiting),
                fill: true,
              },
              {
                label: 'running',
                color: 'running',
                values: run.series.points.map((point) => point.running),
              },
              {
                label: 'limit',
                color: 'failed',
                values: run.series.points.map((point) => point.limit ?? null),
                dash: true,
              },
            ]}
          />
        ))}
      </div>
      <Groups current={found.current} changed={found.changed} />
      <Differences found={found} />
    </div>
  );
}

function Groups({ current, changed }: { current: SimulatedRun; changed: SimulatedRun }) {
  const before = new Map(current.groups.map((group) => [group.value, group]));
  type Group = SimulatedRun['groups'][number];
  return (
    <Table<Group>
      caption="Groups"
      rows={changed.groups}
      id={(group) => group.value}
      columns={[
        {
          id: 'value',
          label: 'Group',
          cell: (group) => <bdi>{group.value}</bdi>,
          sort: (group) => group.value,
        },
        {
          id: 'jobs',
          label: 'Jobs',
          cell: (group) => count(group.jobs),
          sort: (group) => group.jobs,
          number: true,
        },
        {
          id: 'share',
          label: 'Share',
          cell: (group) => percent(group.share),
          sort: (group) => group.share,
          number: true,
        },
        {
          id: 'before',
          label: 'Start delay p99, present',
          cell: (group) => span(before.get(group.value)?.start_delay_seconds?.p99),
          number: true,
        },
        {
          id: 'after',
          label: 'changed',
          cell: (group) => span(group.start_delay_seconds?.p99),
          sort: (group) => group.start_delay_seconds?.p99,
          number: true,
        },
      ]}
    />
  );
}

function Differences({ found }: { found: Simulated }) {
  if (!found.differences.length) return null;
  return (
    <>
      <p>
        {plural(found.different_jobs, 'job')} got another decision of the plugin. The first of them:
      </p>
      <Table<Simulated['differences'][number]>
        caption="Decisions that differ"
        rows={found.differences}
        id={(row) => `${row.job} ${row.at_seconds}`}
        columns={[
          { id: 'at', label: 'After', cell: (row) => span(row.at_seconds), number: true },
          {
            id: 'job',
            label: 'Job',
            cell: (row) => <a href={href(['jobs'], { id: row.job })}>{row.job}</a>,
          },
          { id: 'value', label: 'Group', cell: (row) => <bdi>{row.value}</bdi> },
          { id: 'current', label: 'Present', cell: (row) => row.current },
          { id: 'changed', label: 'Changed', cell: (row) => row.changed },
        ]}
      />
    </>
  );
}
