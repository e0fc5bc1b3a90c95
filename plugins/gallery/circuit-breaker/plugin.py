"""A circuit breaker for each target: after so many failures in a row it holds the target's jobs, and starts a
few of them as probes from time to time. The first success closes it again. The same rule as in src/lib.rs."""

from sdk.throttler import Throttler, hold_until, log, metrics, run, state_key

# A target without attempts for this time is forgotten, in milliseconds.
DAY = 86_400_000
CLOSED = {"failures": 0, "opened_at": None, "probe_at": 0}


def millis(seconds):
    return round(seconds * 1000)


class Throttle(Throttler):
    about = "Holds the jobs of a target that fails, and probes it from time to time."
    state_version = 1
    needs_ended = True

    def decide(self, config, round, candidates):
        now, state, attribute = round.now, round.state, config.get("attribute")
        opened, most = max(1, millis(config["open_seconds"])), config.get("probes", 1)
        circuits = {}

        def target(job):
            return (job.target_host if attribute is None else job.attribute(attribute)) or ""

        def circuit_of(name):
            if name not in circuits:
                circuits[name] = dict(state.load(state_key("circuit", name)) or CLOSED)
            return circuits[name]

        for ended in round.ended:
            learn(circuit_of(target(ended)), ended, config["failures"], now + opened)
        started = {}
        decisions = []
        for job in candidates:
            name = target(job)
            circuit, probes = circuit_of(name), started.get(name, 0)
            if circuit["opened_at"] is None:
                decisions.append(run())
            elif (probes > 0 or circuit["probe_at"] <= now) and probes < most:
                started[name], circuit["probe_at"] = probes + 1, now + opened
                decisions.append(run())
            else:
                why = f"{name} failed {circuit['failures']} times in a row"
                decisions.append(hold_until(circuit["probe_at"], why))
        for name, circuit in circuits.items():
            metrics.set("open", name, 0 if circuit["opened_at"] is None else 1)
            key = state_key("circuit", name)
            if circuit == CLOSED:
                state.delete(key)
            elif circuit != state.load(key):
                try:
                    state.save(key, circuit, max(circuit["probe_at"], now) + DAY)
                except ValueError as problem:
                    log.warn(problem)
        return decisions


def learn(circuit, ended, failures, probe_at):
    """Counts an ended attempt. A failed one may open the circuit, until `probe_at`."""
    opened_at, status = circuit["opened_at"], ended.status
    # What began before the circuit opened is no probe.
    if opened_at is not None and ended.started_at < opened_at:
        return
    # The target answered a request that is wrong, or the attempt was handed back or cancelled. A timeout,
    # "too early" and "too many requests" are failures of the target.
    is_temporary = status in (408, 425, 429)
    is_answer = status is not None and 400 <= status < 500
    is_handed_back = ended.reason in (None, "released", "snoozed")
    if ended.succeeded or (is_answer and not is_temporary):
        circuit.update(CLOSED)
    elif not is_handed_back:
        circuit["failures"] += 1
        if opened_at is not None or circuit["failures"] >= failures:
            circuit["opened_at"] = ended.ended_at if opened_at is None else opened_at
            circuit["probe_at"] = probe_at
