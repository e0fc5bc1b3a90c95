// Charts with axes, by uPlot. The chart is made once; new data move it in place.

import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { clock, NONE, span } from '../lib/format';
import { theme, zone } from '../state/prefs';

/** A line of a chart. */
export interface Series {
  label: string;
  /** The name of a colour of the style sheet: `--c-NAME`. */
  color: string;
  values: (number | null)[];
  fill?: boolean;
  dash?: boolean;
}

/** What a chart shows: the instants (or seconds) of its points, and lines. */
export interface ChartProps {
  title: string;
  /** Seconds: since the epoch, or since the start if `elapsed`. */
  x: number[];
  series: Series[];
  elapsed?: boolean;
  format: (value: number | null | undefined) => string;
  /** The largest value of the vertical axis, if charts share one. */
  top?: number | undefined;
  /** Instants at which something was changed. */
  marks?: readonly { x: number }[];
}

const HEIGHT = 150;
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;
/** The distances of marks on an axis of elapsed seconds. */
const SPANS = [
  ...[0.001, 0.01, 0.1, 1, 2, 5, 10, 15, 30],
  ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE),
  ...[1, 2, 3, 6, 12].map((n) => n * HOUR),
  ...[1, 2, 7, 30, 100, 1000].map((n) => n * DAY),
];

/** A colour of the style sheet as a canvas takes it: the browser resolves light and dark. */
function css(name: string, alpha = 1): string {
  const probe = document.createElement('span');
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  const parts = /^rgb\((.*)\)$/.exec(color)?.[1];
  return parts && alpha < 1 ? `rgba(${parts}, ${alpha})` : color;
}

/** Draws a dashed line at each mark. */
function drawMarks(plot: uPlot, marks: readonly { x: number }[]): void {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.strokeStyle = css('--text');
  ctx.setLineDash([3, 3]);
  for (const { x } of marks) {
    const at = Math.round(plot.valToPos(x, 'x', true));
    if (at < bbox.left || at > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(at, bbox.top);
    ctx.lineTo(at, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function options(
  props: ChartProps,
  width: number,
  marks: () => readonly { x: number }[],
): uPlot.Options {
  const seconds = (props.x.at(-1) ?? 0) - (props.x[0] ?? 0) < 300;
  const axis = {
    stroke: css('--soft'),
    grid: { stroke: css('--line'), width: 1 },
    ticks: { show: false },
    font: '11px system-ui',
  };
  return {
    width,
    height: HEIGHT,
    hooks: { draw: [(plot) => drawMarks(plot, marks())] },
    legend: { live: true },
    cursor: { points: { size: 5 }, drag: { x: false, y: false } },
    scales: {
      x: { time: !props.elapsed },
      y: { range: (_, __, max) => [0, Math.max(props.top ?? 0, max, 1e-3) * 1.05] },
    },
    axes: [
      {
        ...axis,
        size: 26,
        space: 70,
        ...(props.elapsed ? { incrs: SPANS } : {}),
        values: (_, ticks) =>
          ticks.map((tick) => (props.elapsed ? span(tick) : clock(tick, zone.peek(), seconds))),
      },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => props.format(tick)) },
    ],
    series: [
      {
        label: props.elapsed ? 'After' : 'Time',
        value: (_: uPlot, at: number | null) =>
          at === null ? NONE : props.elapsed ? span(at) : clock(at, zone.peek(), true),
      },
      ...props.series.map((one) => ({
        label: one.label,
        stroke: css(`--c-${one.color}`),
        width: 1.5,
        ...(one.fill ? { fill: css(`--c-${one.color}`, 0.14) } : {}),
        ...(one.dash ? { dash: [5, 4] } : {}),
        spanGaps: true,
        points: { size: 5 },
        value: (_: uPlot, value: number | null) => props.format(value),
      })),
    ],
  };
}

/** A chart with a legend, as wide as its place. */
export function Chart(props: ChartProps) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const marks = useRef(props.marks ?? []);
  marks.current = props.marks ?? [];
  const data = [props.x, ...props.series.map((one) => one.values)] as uPlot.AlignedData;
  const look = `${theme.value} ${zone.value} ${props.series.map((one) => one.label)} ${props.top ?? ''}`;

  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const made = new uPlot(
      options(props, element.clientWidth || 300, () => marks.current),
      data,
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => {
      if (element.clientWidth !== made.width)
        made.setSize({ width: element.clientWidth || 300, height: HEIGHT });
    });
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [look]);
  useEffect(() => {
    plot.current?.setData(data);
  });
  return (
    <figure class="chart">
      <figcaption>{props.title}</figcaption>
      <div ref={place} role="img" aria-label={summary(props)} />
    </figure>
  );
}

/** The latest values in words, for who cannot see the picture. */
function summary({ title, series, format }: ChartProps): string {
  const latest = series.map((one) => {
    const value = one.values.findLast((v) => v !== null);
    return `${one.label} ${format(value)}`;
  });
  return `${title}: ${latest.join(', ')}`;
}
