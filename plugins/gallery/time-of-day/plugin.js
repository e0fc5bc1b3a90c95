// A budget of starts by local time of day: fewer while people work, more at night. The same rule as in
// src/lib.rs.
import { throttler, run, holdUntil, clock } from './sdk/throttler.js';

const TIME = /^([01]\d|2[0-3]):[0-5]\d$/;

export const throttle = throttler({
  about: 'Starts so many attempts in each part of the day, by local time.',
  stateVersion: 1,

  check({ zone = 'UTC', starts }) {
    const problems = [];
    try {
      clock.local(zone, 0);
    } catch {
      problems.push({ path: '/zone', message: 'must be the IANA name of a time zone' });
    }
    const times = Object.keys(starts);
    if (times.length === 0) problems.push({ path: '/starts', message: 'must have at least one time of day' });
    for (const time of times.filter((time) => !TIME.test(time))) {
      problems.push({ path: `/starts/${time}`, message: 'must be like 08:00' });
    }
    return problems;
  },

  decide({ zone = 'UTC', starts }, { now, state }, candidates) {
    const shown = clock.local(zone, now).time;
    const time = [shown.hour, shown.minute].map((part) => String(part).padStart(2, '0')).join(':');
    const times = Object.keys(starts).sort();
    // Before the first time of a day, the last one of the day before applies.
    const from = times.filter((start) => start <= time).at(-1) ?? times.at(-1);
    const most = starts[from];
    const ends = next(zone, times, shown, now);
    // The count expires with its part of the day.
    const before = state.load('used') ?? 0;
    let used = before;
    const decisions = candidates.map(() => {
      if (used >= most) return holdUntil(ends, `${most} attempts started since ${from}`);
      used += 1;
      return run();
    });
    if (used > before) state.save('used', used, ends);
    return { decisions, more: used < most };
  },
});

// When the next part of the day begins: after `now`, which the zone shows as this day.
function next(zone, times, { year, month, day }, now) {
  for (let later = 0; later < 3; later += 1) {
    const date = new Date(Date.UTC(year, month - 1, day + later));
    for (const time of times) {
      const [hour, minute] = time.split(':').map(Number);
      const at = clock.instant(zone, {
        year: date.getUTCFullYear(),
        month: date.getUTCMonth() + 1,
        day: date.getUTCDate(),
        hour,
        minute,
      });
      // In the hour that comes twice in autumn, a later time may be in the past.
      if (at > now) return at;
    }
  }
  throw new Error('no part of the day begins within two days');
}
