"""A leaky bucket for each value of an attribute: jobs leave it one by one, at a fixed interval, however they
come in. What would wait too long overflows and is dropped. The same rule as in src/lib.rs."""

from sdk.throttler import Answer, Throttler, drop, hold_until, run, state_key

# How far a bucket may catch up, in milliseconds. A queue offers a held job again after 50 ms at the
# earliest, so that jobs with a shorter interval leave in groups.
SLACK = 50


def millis(seconds):
    return round(seconds * 1000)


class Throttle(Throttler):
    about = "Starts jobs one by one, at a fixed interval, and drops what overflows."
    state_version = 1

    def check(self, config):
        right = 0.001 <= config["every_seconds"] <= 86400
        return [] if right else [("/every_seconds", "must be 0.001 to 86400")]

    def decide(self, config, round, candidates):
        now, state, attribute = round.now, round.state, config.get("attribute")
        every, overflow = millis(config["every_seconds"]), config.get("overflow_seconds")
        # When the next job of each bucket leaves, which moves with each job of this call.
        leaves = {}
        decisions = []
        for job in candidates:
            bucket = (job.attribute(attribute) if attribute is not None else None) or ""
            key = state_key("next", bucket)
            if bucket not in leaves:
                leaves[bucket] = state.load(key)
            at = now if leaves[bucket] is None else max(leaves[bucket], now - SLACK)
            if overflow is not None and at - now > millis(overflow):
                decisions.append(drop("its bucket is full"))
                continue
            leaves[bucket] = at + every
            if at > now:
                decisions.append(hold_until(at, f"one job leaves every {every} ms"))
                continue
            try:
                state.save(key, at + every, at + every + SLACK)
                decisions.append(run())
            except ValueError as problem:
                # Without room in the state, no job of the bucket runs.
                decisions.append(hold_until(now + every, problem))
        return Answer(decisions, more=attribute is not None)
