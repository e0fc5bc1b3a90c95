// The previous occurrences of a schedule as a small picture.

import { type Bar, barsOf, barsText, type Past } from '../lib/occurrences';
import { now } from '../state/live';

/** The occurrences that the server names of each schedule. */
const SLOTS = 10;
const WIDTH = 120;
const HEIGHT = 24;
const SLOT = WIDTH / SLOTS;
/** The height of an occurrence that took no measurable time, or whose job is not known. */
const LEAST = 2;

/** A bar per occurrence, as high as it took long, and a line for how late it began. */
export function Picture({ past }: { past: Past[] }) {
  if (!past.length) return <span class="soft">–</span>;
  const bars = barsOf(past.slice(0, SLOTS), now.value);
  // The latest is at the right, also of a schedule with few occurrences.
  const first = SLOTS - bars.length;
  const longest = Math.max(0.001, ...bars.map((bar) => bar.took ?? 0));
  const latest = Math.max(0.001, ...bars.map((bar) => bar.delay ?? 0));
  const high = (bar: Bar) => Math.max(LEAST, ((bar.took ?? 0) / longest) * (HEIGHT - 1));
  const spots = bars.flatMap((bar, at) =>
    bar.delay === null
      ? []
      : [`${(first + at + 0.4) * SLOT} ${HEIGHT - 1 - (bar.delay / latest) * (HEIGHT - 2)}`],
  );
  return (
    <svg
      class="spark occurrences"
      viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
      preserveAspectRatio="none"
      role="img"
      aria-label={barsText(bars)}
    >
      <title>{barsText(bars)}</title>
      {bars.map((bar, at) => (
        <rect
          key={at}
          class={bar.kind}
          x={(first + at) * SLOT}
          y={HEIGHT - high(bar)}
          width={SLOT * 0.8}
          height={high(bar)}
        />
      ))}
      {spots.length > 1 && <path class="line" d={`M${spots.join('L')}`} />}
    </svg>
  );
}
