"""One job of each customer at a time, in turn. A free slot goes to the customer whose last job started the
longest ago, and of it to the first job of the queue. The same rule as in src/lib.rs."""

from math import inf

from sdk.throttler import Answer, Throttler, hold, log, run, state_key

# A customer without starts for this time is forgotten, in milliseconds. Its next job goes first.
DAY = 86_400_000


class Throttle(Throttler):
    about = "Runs one job of each customer at a time, and the customers take turns."
    state_version = 1
    group_by = ["*"]

    def check(self, config):
        right = isinstance(config.get("attribute"), str)
        return [] if right else [("", "missing field `attribute`")]

    def decide(self, config, round, candidates):
        attribute, state = config["attribute"], round.state
        groups = round.running.groups("attribute", attribute)
        taken = {group.value for group in groups}
        if round.running.count() > sum(group.count for group in groups):
            taken.add("")
        # The first candidate of each customer without a running job, by the time of its last start.
        turns = []
        for place, job in enumerate(candidates):
            customer = job.attribute(attribute) or ""
            if customer not in taken:
                taken.add(customer)
                key = state_key("began", customer)
                turns.append((state.load(key) or 0, place, key))
        turns.sort()

        decisions = [hold(f"one job of each {attribute} at a time")] * len(candidates)
        # Without a limit of the queue, only the room of the workers counts.
        limit = inf if round.concurrency is None else round.concurrency
        free, room = max(0, limit - round.running.weight()), round.room
        for _, place, key in turns:
            weight = candidates[place].weight
            if weight > free or room == 0:
                decisions[place] = hold("free slots go to other customers first")
                continue
            free, room, decisions[place] = free - weight, room - 1, run()
            try:
                state.save(key, round.now, round.now + DAY)
            except ValueError as problem:
                log.warn(problem)
        return Answer(decisions, more=free > 0 and room > 0)
