// Weighted fair shares of the queue's limit: first among tenants, then among the users of each. The same
// rule as in src/lib.rs.
//
// A free slot goes to the tenant that uses the least for its weight, and within it to the user that uses
// the least. So a tenant without jobs lends its share, and gets it back as jobs end. No tenant borrows what
// another one waits for within its share, even if the other one has no candidate in this call.
import { throttler, run, hold } from './sdk/throttler.js';

export const throttle = throttler({
  about: 'Shares the limit among tenants by weight, and among the users of each.',
  groupBy: ['*'],
  waitingBy: ['*'],

  check({ tenant }) {
    return typeof tenant === 'string' ? [] : [{ path: '', message: 'missing field `tenant`' }];
  },

  decide({ tenant, user, weights = {} }, { concurrency, room: workers, running, waiting }, candidates) {
    const limit = concurrency ?? running.weight() + workers;
    // Without a limit of the queue, only the room of the workers counts.
    let free = Math.max(0, (concurrency ?? Infinity) - running.weight());
    let room = workers;
    const weightOf = (of) => (Object.hasOwn(weights, of) ? weights[of] : 1);
    let turns = candidates;
    if (user != null) turns = inTurns(turns, user, running.weights({ attribute: user }), (_, used) => used);
    const usage = running.weights({ attribute: tenant });
    const planned = new Map(usage);
    turns = inTurns(turns, tenant, planned, (of, used) => {
      const weight = weightOf(of);
      return weight === 0 ? Number.MAX_SAFE_INTEGER : Math.floor((used * 2 ** 20) / weight);
    });

    // The tenants that run or wait share the limit.
    const waits = waiting.groups(tenant);
    const tenants = new Set([...waits.map((group) => group.value), ...planned.keys()]);
    const all = Math.max(1, [...tenants].reduce((sum, of) => sum + weightOf(of), 0));
    const share = (of) => Math.floor((weightOf(of) * limit) / all);
    // What a tenant waits for within its share is kept from all others.
    const kept = new Map();
    for (const { value: of, weight } of waits) {
      kept.set(of, Math.min(weight, Math.max(0, share(of) - (usage.get(of) ?? 0))));
    }
    let allKept = [...kept.values()].reduce((sum, weight) => sum + weight, 0);

    const runs = new Set();
    for (const job of turns) {
      // A job that does not fit after the earlier turns ends the turns of this call. It is a candidate of
      // the next call only if it fits then.
      if (job.weight > free || room === 0) break;
      const of = valueOf(job, tenant);
      const own = kept.get(of) ?? 0;
      // Kept for the other tenants.
      const others = allKept - own;
      if (job.weight > own && others > 0 && job.weight + others > Math.min(free, room)) continue;
      allKept -= Math.min(job.weight, own);
      kept.set(of, Math.max(0, own - job.weight));
      free -= job.weight;
      room -= 1;
      runs.add(job);
      add(usage, job, tenant);
    }
    const decisions = candidates.map((job) => {
      const of = valueOf(job, tenant);
      return runs.has(job) ? run() : hold(`${of} uses ${usage.get(of) ?? 0} of ${limit}; its share is ${share(of)}`);
    });
    // Candidates of the tenants for which something is kept may be behind these.
    return { decisions, more: runs.size === candidates.length || (allKept > 0 && free > 0) };
  },
});

const valueOf = (job, by) => job.attribute(by) ?? '';

// Adds a job to what its value uses. Returns what it used before.
function add(used, job, by) {
  const of = valueOf(job, by);
  const before = used.get(of) ?? 0;
  used.set(of, before + job.weight);
  return before;
}

// Sorts jobs by what their value uses when their turn comes, and adds them to `used`. The usage of a value
// only grows, so the next job is always of the value that uses the least.
function inTurns(jobs, by, used, rank) {
  const ranked = jobs.map((job) => ({ job, rank: rank(valueOf(job, by), add(used, job, by)) }));
  return ranked.sort((a, b) => a.rank - b.rank).map(({ job }) => job);
}
