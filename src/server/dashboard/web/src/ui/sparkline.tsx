// Small pictures of an hour: cheap enough for hundreds of rows.

/** A point: the minute, counted from the first one shown, and its value. */
export type Spot = readonly [x: number, y: number];

const WIDTH = 120;
const HEIGHT = 24;

/** The path of bars from the bottom, one per spot. */
export function bars(spots: readonly Spot[], steps: number, top: number): string {
  const wide = WIDTH / steps;
  return spots
    .filter(([, y]) => y > 0)
    .map(([x, y]) => {
      const high = Math.max(1, (y / top) * HEIGHT);
      return `M${(x * wide).toFixed(1)} ${HEIGHT}v-${high.toFixed(1)}h${(wide * 0.8).toFixed(1)}v${high.toFixed(1)}z`;
    })
    .join('');
}

/** The path of a line through the spots. */
export function line(spots: readonly Spot[], steps: number, top: number): string {
  const wide = WIDTH / steps;
  return spots
    .map(
      ([x, y], i) =>
        `${i ? 'L' : 'M'}${((x + 0.4) * wide).toFixed(1)} ${(HEIGHT - 1 - (y / top) * (HEIGHT - 2)).toFixed(1)}`,
    )
    .join('');
}

/** Bars for what ended, over them what failed, and a line for what waited; each with its own scale. */
export function Sparkline(props: {
  label: string;
  steps: number;
  done: Spot[];
  failed: Spot[];
  waiting: Spot[];
}) {
  const { steps, done, failed, waiting } = props;
  const top = Math.max(1, ...done.map(([, y]) => y));
  const deepest = Math.max(1, ...waiting.map(([, y]) => y));
  return (
    <svg
      class="spark"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={props.label}
    >
      <path class="done" d={bars(done, steps, top)} />
      <path class="bad" d={bars(failed, steps, top)} />
      <path class="line" d={line(waiting, steps, deepest)} />
    </svg>
  );
}
