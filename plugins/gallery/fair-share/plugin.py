"""Weighted fair shares of the queue's limit: first among tenants, then among the users of each. The same rule
as in src/lib.rs.

A free slot goes to the tenant that uses the least for its weight, and within it to the user that uses the least.
So a tenant without jobs lends its share, and gets it back as jobs end. No tenant borrows what another one waits
for within its share, even if the other one has no candidate in this call."""

from math import inf

from sdk.throttler import Answer, Throttler, hold, run


class Throttle(Throttler):
    about = "Shares the limit among tenants by weight, and among the users of each."
    group_by = ["*"]
    waiting_by = ["*"]

    def check(self, config):
        right = isinstance(config.get("tenant"), str)
        return [] if right else [("", "missing field `tenant`")]

    def decide(self, config, round, candidates):
        tenant, user, weights = config["tenant"], config.get("user"), config.get("weights", {})
        running, room = round.running.weight(), round.room
        limit = running + room if round.concurrency is None else round.concurrency
        # Without a limit of the queue, only the room of the workers counts.
        free = inf if round.concurrency is None else max(0, limit - running)

        def rank(of, used):
            weight = weights.get(of, 1)
            return inf if weight == 0 else (used << 20) // weight

        turns = range(len(candidates))
        if user is not None:
            used = round.running.weights("attribute", user)
            turns = in_turns(candidates, turns, user, used, lambda of, used: used)
        usage = round.running.weights("attribute", tenant)
        planned = dict(usage)
        turns = in_turns(candidates, turns, tenant, planned, rank)

        # The tenants that run or wait share the limit.
        waits = round.waiting.groups(tenant)
        tenants = {group.value for group in waits} | planned.keys()
        total = max(1, sum(weights.get(of, 1) for of in tenants))

        def share(of):
            return weights.get(of, 1) * limit // total

        # What a tenant waits for within its share is kept from all others.
        kept = {of.value: min(of.weight, max(0, share(of.value) - usage.get(of.value, 0))) for of in waits}
        all_kept = sum(kept.values())

        runs = set()
        for place in turns:
            weight = candidates[place].weight
            if weight > free or room == 0:
                # A job that does not fit after the earlier turns ends the turns of this call. It is a
                # candidate of the next call only if it fits then.
                break
            of = value_of(candidates[place], tenant)
            own = kept.get(of, 0)
            # Kept for the other tenants.
            others = all_kept - own
            if weight > own and others > 0 and weight + others > min(free, room):
                continue
            all_kept -= min(weight, own)
            kept[of] = max(0, own - weight)
            free, room = free - weight, room - 1
            runs.add(place)
            add(usage, candidates[place], tenant)
        decisions = []
        for place, job in enumerate(candidates):
            of = value_of(job, tenant)
            why = f"{of} uses {usage.get(of, 0)} of {limit}; its share is {share(of)}"
            decisions.append(run() if place in runs else hold(why))
        # Candidates of the tenants for which something is kept may be behind these.
        return Answer(decisions, more=len(runs) == len(candidates) or (all_kept > 0 and free > 0))


def value_of(job, by):
    return job.attribute(by) or ""


def add(used, job, by):
    """Adds a job to what its value uses. Returns what it used before."""
    of = value_of(job, by)
    used[of] = used.get(of, 0) + job.weight
    return used[of] - job.weight


def in_turns(jobs, places, by, used, rank):
    """Sorts jobs by what their value uses when their turn comes, and adds them to `used`. The usage of a value
    only grows, so the next job is always of the value that uses the least."""
    ranked = [(rank(value_of(jobs[place], by), add(used, jobs[place], by)), place) for place in places]
    ranked.sort(key=lambda job: job[0])
    return [place for _, place in ranked]
