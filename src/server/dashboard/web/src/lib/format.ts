// Texts for numbers, spans and instants. Everything here is pure: the caller gives time and zone.

/** How instants are shown: in UTC, or in the zone of the browser. */
export type Zone = 'utc' | 'local';

/** Shown where there is no value. */
export const NONE = '–';

/** A count with groups of three digits: `12 345`. A narrow space that does not break groups them. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  const [whole = '', rest] = String(Math.round(value * 1000) / 1000).split('.');
  const grouped = whole.replace(/\B(?=(\d{3})+$)/g, '\u202f');
  return rest ? `${grouped}.${rest}` : grouped;
}

/** `1 job`, `2 jobs`. */
export function plural(n: number, one: string, many = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** A span for people, with two units at most: `12 ms`, `3.4 s`, `5 min 10 s`, `3 h 4 min`, `2 d 1 h`. */
export function span(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return NONE;
  const size = Math.abs(seconds);
  if (size === 0) return '0 s';
  if (size < 0.0005) return '< 1 ms';
  if (size < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (size < 9.95) return `${trim(seconds.toFixed(1))} s`;
  if (size < 119.5) return `${Math.round(seconds)} s`;
  return two(Math.round(size), seconds < 0 ? '-' : '');
}

function two(seconds: number, sign: string): string {
  const units: [string, number][] = [
    ['d', 86_400],
    ['h', 3600],
    ['min', 60],
    ['s', 1],
  ];
  const at = units.findIndex(([, size]) => seconds >= size);
  const [unit, size] = units[at] ?? ['s', 1];
  const whole = Math.floor(seconds / size);
  const next = units[at + 1];
  const rest = next && whole < 100 ? Math.floor((seconds % size) / next[1]) : 0;
  return `${sign}${whole} ${unit}${next && rest ? ` ${rest} ${next[0]}` : ''}`;
}

function trim(text: string): string {
  return text.replace(/\.0$/, '');
}

/** The distance of an instant from now: `3 s ago`, `in 5 min`, `now`. */
export function relative(at: string | null | undefined, now: number): string {
  const time = instant(at);
  if (time === null) return NONE;
  const seconds = Math.round((time - now) / 1000);
  // The clocks of two machines, and of a page that ticks once a second, are not the same.
  if (Math.abs(seconds) <= 1) return 'now';
  const text = coarse(Math.abs(seconds));
  return seconds < 0 ? `${text} ago` : `in ${text}`;
}

/** How long ago an instant was, in one unit: `3 s`; `0 s` for one that is to come. */
export function age(at: string | null | undefined, now: number): string {
  const time = instant(at);
  return time === null ? NONE : coarse(Math.max(0, Math.round((now - time) / 1000)));
}

/** A span in one unit, where two would be too long: `15 min`. */
export function brief(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !(seconds >= 120)) return span(seconds);
  return coarse(seconds);
}

/** One unit: `45 s`, `12 min`, `5 h`, `3 d`. */
function coarse(seconds: number): string {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

/** The milliseconds of an instant; null if the text is none. */
export function instant(at: string | null | undefined): number | null {
  if (!at) return null;
  const time = Date.parse(at);
  return Number.isNaN(time) ? null : time;
}

const pad = (value: number, width = 2): string => String(value).padStart(width, '0');

/** An instant in full: `2026-01-31 08:00:00.123 UTC`, or with the offset of the local zone. */
export function full(at: string | null | undefined, zone: Zone): string {
  const time = instant(at);
  if (time === null) return NONE;
  const d = new Date(time);
  const parts = calendar(d, zone);
  return `${parts.date} ${parts.time}.${pad(d.getUTCMilliseconds(), 3)} ${zoneName(zone, d)}`;
}

/** An instant without its zone; without the date too if that is today: `08:00:00`, `01-31 08:00:00`. */
export function short(at: string | null | undefined, zone: Zone, now: number): string {
  const time = instant(at);
  if (time === null) return NONE;
  const parts = calendar(new Date(time), zone);
  const today = calendar(new Date(now), zone);
  if (parts.date === today.date) return parts.time;
  const sameYear = parts.date.slice(0, 4) === today.date.slice(0, 4);
  return `${sameYear ? parts.date.slice(5) : parts.date} ${parts.time}`;
}

/** An instant to the minute with its zone: `2026-01-31 08:00 UTC`. */
export function minute(at: string | null | undefined, zone: Zone): string {
  const time = instant(at);
  if (time === null) return NONE;
  const d = new Date(time);
  const parts = calendar(d, zone);
  return `${parts.date} ${parts.time.slice(0, 5)} ${zoneName(zone, d)}`;
}

/** The time of day of an instant in seconds: `08:00`, or with its seconds. */
export function clock(seconds: number, zone: Zone, whole = false): string {
  return calendar(new Date(seconds * 1000), zone).time.slice(0, whole ? 8 : 5);
}

function calendar(d: Date, zone: Zone): { date: string; time: string } {
  if (zone === 'utc') {
    return { date: d.toISOString().slice(0, 10), time: d.toISOString().slice(11, 19) };
  }
  return {
    date: `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`,
    time: `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`,
  };
}

/** The name of a zone: `UTC`, or the offset of the local one: `+02:00`. */
export function zoneName(zone: Zone, at = new Date()): string {
  if (zone === 'utc') return 'UTC';
  const minutes = -at.getTimezoneOffset();
  const size = Math.abs(minutes);
  return `${minutes < 0 ? '-' : '+'}${pad(Math.floor(size / 60))}:${pad(size % 60)}`;
}

/** Bytes: `512 B`, `1.5 KiB`, `3 MiB`. */
export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return NONE;
  if (value < 1024) return `${value} B`;
  if (value < 1_048_576) return `${trim((value / 1024).toFixed(1))} KiB`;
  return `${trim((value / 1_048_576).toFixed(1))} MiB`;
}

/** A rate per second, with a precision that suits its size; small ones per minute or hour. */
export function rate(perSecond: number | null | undefined): string {
  if (perSecond === null || perSecond === undefined) return NONE;
  if (perSecond === 0) return '0/s';
  if (perSecond >= 100) return `${count(Math.round(perSecond))}/s`;
  if (perSecond >= 1) return `${trim(perSecond.toFixed(1))}/s`;
  if (perSecond >= 1 / 60) return `${trim((perSecond * 60).toFixed(1))}/min`;
  return `${trim((perSecond * 3600).toFixed(1))}/h`;
}

/** A count in little room: as it is below 10,000, then `12.3 k`, `123 k`, `1.2 M`. */
export function compact(value: number): string {
  if (value < 10_000) return count(value);
  const [size, unit] = value < 999_500 ? [1000, 'k'] : [1_000_000, 'M'];
  const part = value / size;
  return `${part >= 99.95 ? count(Math.round(part)) : trim(part.toFixed(1))} ${unit}`;
}

/** Two rates, in the unit of the larger one: `3 · 2.5/s`. */
export function rates(one: number | null | undefined, other: number | null | undefined): string {
  const larger = Math.max(one ?? 0, other ?? 0);
  const [seconds, unit] = larger >= 1 ? [1, 's'] : larger >= 1 / 60 ? [60, 'min'] : [3600, 'h'];
  const show = (perSecond: number | null | undefined) => {
    if (perSecond === null || perSecond === undefined) return NONE;
    const value = perSecond * seconds;
    return value >= 100 ? compact(Math.round(value)) : trim(value.toFixed(1));
  };
  return `${show(one)} · ${show(other)}/${larger > 0 ? unit : 's'}`;
}

/** A share as a percentage: `12 %`, `0.4 %`. */
export function percent(share: number | null | undefined): string {
  if (share === null || share === undefined || !Number.isFinite(share)) return NONE;
  const value = share * 100;
  return `${value === 0 || value >= 10 ? Math.round(value) : trim(value.toFixed(1))} %`;
}

/** What holds jobs, by name: `constraint per-tenant (acme)`. */
export function holder(held: {
  kind: string;
  name?: string | null;
  value?: string | null;
}): string {
  const kind = held.kind.replace(/_/g, ' ');
  return `${kind}${held.name ? ` ${held.name}` : ''}${held.value ? ` (${held.value})` : ''}`;
}
