// A leaky bucket for each value of an attribute: jobs leave it one by one, at a fixed interval, however
// they come in. What would wait too long overflows and is dropped. The same rule as in src/lib.rs.
import { throttler, run, holdUntil, drop, stateKey } from './sdk/throttler.js';

// How far a bucket may catch up, in milliseconds. A queue offers a held job again after 50 ms at the
// earliest, so that jobs with a shorter interval leave in groups.
const SLACK = 50;

export const throttle = throttler({
  about: 'Starts jobs one by one, at a fixed interval, and drops what overflows.',
  stateVersion: 1,

  check({ every_seconds: every }) {
    return every >= 0.001 && every <= 86400 ? [] : [{ path: '/every_seconds', message: 'must be 0.001 to 86400' }];
  },

  decide(config, { now, state }, candidates) {
    const every = Math.round(config.every_seconds * 1000);
    const overflow = Math.round((config.overflow_seconds ?? Infinity) * 1000);
    const attribute = config.attribute ?? null;
    // When the next job of each bucket leaves, which moves with each job of this call.
    const leaves = new Map();
    const decisions = candidates.map((job) => {
      const bucket = (attribute === null ? undefined : job.attribute(attribute)) ?? '';
      const key = stateKey('next', bucket);
      const at = Math.max(leaves.get(bucket) ?? state.load(key) ?? now, now - SLACK);
      if (at - now > overflow) return drop('its bucket is full');
      const next = at + every;
      leaves.set(bucket, next);
      if (at > now) return holdUntil(at, `one job leaves every ${every} ms`);
      try {
        state.save(key, next, next + SLACK);
        return run();
      } catch (problem) {
        // Without room in the state, no job of the bucket runs.
        return holdUntil(now + every, problem.message);
      }
    });
    return { decisions, more: attribute !== null };
  },
});
