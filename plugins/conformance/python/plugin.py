"""The conformance plugin: it writes what it receives into its state, and answers as its configuration says.

`cases` has the configurations and the expected texts.
"""

import random

from componentize_py_types import Err
from sdk.retry import RetryStrategy, give_up, retry_at
from sdk.throttler import Answer, LocalTime, Throttler, clock, data_of, drop, hold, hold_until, log, metrics, reschedule, run
from sdk.common import read_json, write_json


def or_none(value):
    return "-" if value is None else str(value)


def truth(value):
    return "true" if value else "false"


def joined(separator, *fields):
    return separator.join(map(str, fields))


def failure_text(failure):
    return joined(
        ",",
        failure.attempt,
        failure.reason,
        or_none(failure.message),
        or_none(failure.status),
        or_none(failure.details),
        failure.started_at,
        failure.ended_at,
        or_none(failure.not_before),
    )


def job_text(job):
    return joined(
        "|",
        job.id,
        job.job_type,
        job.priority,
        job.weight,
        job.attempt,
        job.attempts,
        job.created_at,
        job.run_at,
        or_none(job.expires_at),
        or_none(job.deadline_at),
        or_none(job.target_host),
        or_none(job.replay_of),
        or_none(job.correlation_key),
    )


def problems_of(config):
    problems = []
    if type(config.get("at", 0)) is not int:
        problems.append(("/at", "must be a whole number"))
    for index, action in enumerate(config.get("decide", [])):
        if not isinstance(action, str):
            problems.append((f"/decide/{index}", "must be a string"))
    if config.get("attribute") == "":
        problems.append(("/attribute", "must not be empty"))
    return problems


def attribute_of(config):
    return config.get("attribute", "region")


def show_jobs(config, state, jobs):
    shown = config.get("show", [])
    for job in jobs:
        if "jobs" in shown:
            state.set(f"job {job.id}", job_text(job))
        if "attributes" in shown:
            pairs = ";".join(f"{own.name}={own.value}" for own in job.attributes)
            one, none = or_none(job.attribute(attribute_of(config))), or_none(job.attribute("absent"))
            state.set(f"attributes {job.id}", joined("|", pairs, one, none))
        if "earlier" in shown:
            state.set(f"earlier {job.id}", ";".join(map(failure_text, job.earlier)))
        if "data" in shown:
            data = data_of(job)
            state.set(f"data {job.id}", "-" if data is None else write_json(data))


def refused(state, key, value):
    try:
        state.set(key, value)
    except ValueError:
        return truth(True)
    return truth(False)


def show_state(config, state):
    kept = [or_none(state.get(key)) for key in ("kept", "missing", "gone")]
    state.set("state", joined("|", *kept, ",".join(state.keys("k"))))
    state.delete("old")
    state.set("new", "ä🚲")
    state.set("soon", "1", config["at"])
    state.set("refused", joined("|", refused(state, "k" * 129, "v"), refused(state, "k", "v" * 16385)))


def show_full(state):
    """How many long values the state takes, and whether the next one is refused for its bound."""
    count, why = 0, None
    while why is None:
        try:
            state.set(f"full {count}", "v" * 16000)
            count += 1
        except ValueError as error:
            why = str(error)
    first, last = len(state.get("full 0")), or_none(state.get(f"full {count}"))
    for number in range(count):
        state.delete(f"full {number}")
    state.set("full", joined("|", count, truth("256 KiB" in why), first, last))


def fails(call, *given):
    try:
        call(*given)
    except ValueError:
        return truth(True)
    return truth(False)


def show_wrong(config, state):
    zone, at = fails(clock.local, config["zone"], 0), fails(clock.local, "UTC", config["at"])
    time = fails(clock.instant, "UTC", LocalTime(2026, 1, 1, hour=24))
    state.set("wrong", joined("|", zone, at, time))


def show_clock(config, state):
    shown = clock.local(config["zone"], config["at"])
    time = shown.time
    local = f"{time.year}-{time.month}-{time.day} {time.hour}:{time.minute}:{time.second}.{time.millisecond}"
    instant = clock.instant(config["zone"], time)
    state.set("clock", joined("|", clock.now(), local, shown.weekday, shown.offset, instant))


def show_common(config, state, jobs):
    """What throttlers and retry strategies can use."""
    shown = config.get("show", [])
    show_jobs(config, state, jobs)
    if "state" in shown:
        show_state(config, state)
    if "full" in shown:
        show_full(state)
    if "clock" in shown:
        show_clock(config, state)
    if "wrong" in shown:
        show_wrong(config, state)
    if "random" in shown:
        state.set("random", truth(random.random() != random.random()))
    if "metrics" in shown:
        metrics.add("conformance_calls", config["value"], 3)
        metrics.set("conformance_level", config["value"], -0.5)
    if "log" in shown:
        for write in (log.debug, log.info, log.warn, log.error):
            write(config["reason"])


def show_ended(config, state, ended):
    for one in ended:
        text = joined(
            "|",
            one.id,
            one.job_type,
            one.priority,
            one.weight,
            or_none(one.attribute(attribute_of(config))),
            or_none(one.target_host),
            one.attempt,
            one.started_at,
            one.ended_at,
            truth(one.succeeded),
            or_none(one.reason),
            or_none(one.message),
            or_none(one.status),
            or_none(one.details),
            or_none(one.not_before),
        )
        state.set(f"ended {one.id}", text)


def show_running(config, state, running):
    state.set("running", joined("|", running.count(), running.weight()))
    for job in running.page(0, 1000):
        region = or_none(job.attribute(attribute_of(config)))
        critical = truth(job.critical)
        text = joined("|", job.id, job.job_type, job.priority, job.weight, critical, region, job.granted_at)
        state.set(f"running {job.id}", text)
    state.set("page", ",".join(job.id for job in running.page(1, 2)))


def show_groups(config, state, running):
    def text(groups):
        return ";".join(f"{group.value}={group.count},{group.weight}" for group in groups)

    name = attribute_of(config)
    state.set("by type", text(running.groups("job-type")))
    state.set("by priority", text(running.groups("priority")))
    state.set("by attribute", text(running.groups("attribute", name)))
    one = running.in_group("attribute", config["value"], name)
    none = running.in_group("job-type", "none")
    state.set("in group", f"{one.count},{one.weight}|{none.count},{none.weight}")


def show_waiting(config, state, waiting):
    def text(group):
        return joined(",", group.count, group.weight, group.oldest_due_at, truth(group.at_least))

    groups = waiting.groups(attribute_of(config))
    state.set("waiting", ";".join(f"{group.value}={text(group)}" for group in groups))
    others = waiting.others()
    state.set("others", "-" if others is None else text(others))
    state.set("counted at", or_none(waiting.counted_at()))


def decision(config, action):
    reason = config.get("reason", "")
    if action == "hold":
        return hold(reason)
    if action == "hold-until":
        return hold_until(config["at"], reason)
    if action == "reschedule":
        return reschedule(config["at"], reason)
    if action == "drop":
        return drop(reason)
    return run()


class Throttle(Throttler):
    about = "Shows all that a throttler receives."
    state_version = 1
    group_by = ["*"]
    needs_running_jobs = True
    needs_data = True
    needs_ended = True
    needs_earlier = True
    waiting_by = ["*"]

    def check(self, config):
        return problems_of(config)

    def decide(self, config, round, candidates):
        shown, state = config.get("show", []), round.state
        if "round" in shown:
            room = (or_none(round.concurrency), round.room, len(candidates))
            state.set("round", joined("|", round.queue, round.now, *room))
        show_common(config, state, candidates)
        if "ended" in shown:
            show_ended(config, state, round.ended)
        if "running" in shown:
            show_running(config, state, round.running)
        if "groups" in shown:
            show_groups(config, state, round.running)
        if "waiting" in shown:
            show_waiting(config, state, round.waiting)
        actions = config.get("decide", [])
        if actions[:1] == ["error"]:
            raise Err(config["reason"])
        actions = actions + ["run"] * len(candidates)
        decisions = [decision(config, action) for action, _ in zip(actions, candidates)]
        return Answer(decisions, config.get("more", True))


class Retry(RetryStrategy):
    about = "Shows all that a retry strategy receives."
    state_version = 1
    needs_data = True

    def check(self, config):
        return problems_of(config)

    def on_failure(self, config, call, failed, last):
        shown, state = config.get("show", []), call.state
        if "call" in shown:
            state.set("call", joined("|", call.queue, call.now))
        if "last" in shown:
            state.set("last", failure_text(last))
        show_common(config, state, [failed])
        action = (config.get("decide") or ["retry"])[0]
        if action == "error":
            raise Err(config["reason"])
        if action == "give-up":
            return give_up(config["reason"])
        if action == "give-up-silently":
            return give_up()
        changes = {name: config.get(name) for name in ("priority", "weight", "attempts_left", "timeout", "target")}
        if "data" in config:
            changes["data"] = read_json(config["data"])
        return retry_at(config["at"], **changes)
