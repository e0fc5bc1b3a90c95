// One job of each customer at a time, in turn. A free slot goes to the customer whose last job started
// the longest ago, and of it to the first job of the queue. The same rule as in src/lib.rs.
import { throttler, run, hold, log, stateKey } from './sdk/throttler.js';

// A customer without starts for this time is forgotten, in milliseconds. Its next job goes first.
const DAY = 86_400_000;

export const throttle = throttler({
  about: 'Runs one job of each customer at a time, and the customers take turns.',
  stateVersion: 1,
  groupBy: ['*'],

  check({ attribute }) {
    return typeof attribute === 'string' ? [] : [{ path: '', message: 'missing field `attribute`' }];
  },

  decide({ attribute }, round, candidates) {
    const { now, running, state, concurrency } = round;
    const groups = running.groups({ attribute });
    const taken = new Set(groups.map((group) => group.value));
    if (running.count() > groups.reduce((sum, group) => sum + group.count, 0)) taken.add('');
    // The first candidate of each customer without a running job, by the time of its last start.
    const turns = [];
    candidates.forEach((job, place) => {
      const customer = job.attribute(attribute) ?? '';
      if (taken.has(customer)) return;
      taken.add(customer);
      const key = stateKey('began', customer);
      turns.push({ place, key, began: state.load(key) ?? 0 });
    });
    turns.sort((a, b) => a.began - b.began);

    const decisions = candidates.map(() => hold(`one job of each ${attribute} at a time`));
    // Without a limit of the queue, only the room of the workers counts.
    let free = Math.max(0, (concurrency ?? Infinity) - running.weight());
    let { room } = round;
    for (const { place, key } of turns) {
      const { weight } = candidates[place];
      if (weight > free || room === 0) {
        decisions[place] = hold('free slots go to other customers first');
        continue;
      }
      free -= weight;
      room -= 1;
      decisions[place] = run();
      try {
        state.save(key, now, now + DAY);
      } catch (problem) {
        log.warn(problem.message);
      }
    }
    return { decisions, more: free > 0 && room > 0 };
  },
});
