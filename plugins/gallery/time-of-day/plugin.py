"""A budget of starts by local time of day: fewer while people work, more at night. The same rule as in
src/lib.rs."""

import re
from datetime import date, timedelta

from sdk.throttler import Answer, LocalTime, Throttler, clock, hold_until, run

TIME = re.compile(r"([01]\d|2[0-3]):[0-5]\d")


class Throttle(Throttler):
    about = "Starts so many attempts in each part of the day, by local time."
    state_version = 1

    def check(self, config):
        problems = []
        try:
            clock.local(config.get("zone", "UTC"), 0)
        except ValueError:
            problems.append(("/zone", "must be the IANA name of a time zone"))
        if not config["starts"]:
            problems.append(("/starts", "must have at least one time of day"))
        wrong = [time for time in config["starts"] if not TIME.fullmatch(time)]
        return problems + [(f"/starts/{time}", "must be like 08:00") for time in wrong]

    def decide(self, config, round, candidates):
        zone, starts = config.get("zone", "UTC"), config["starts"]
        shown = clock.local(zone, round.now).time
        time, times = f"{shown.hour:02}:{shown.minute:02}", sorted(starts)
        # Before the first time of a day, the last one of the day before applies.
        since = max((start for start in times if start <= time), default=times[-1])
        most = starts[since]
        ends = next_part(zone, times, shown, round.now)
        # The count expires with its part of the day.
        used = before = round.state.load("used") or 0
        decisions = []
        for _ in candidates:
            if used >= most:
                decisions.append(hold_until(ends, f"{most} attempts started since {since}"))
            else:
                used += 1
                decisions.append(run())
        if used > before:
            round.state.save("used", used, ends)
        return Answer(decisions, more=used < most)


def next_part(zone, times, shown, now):
    """When the next part of the day begins: after `now`, which the zone shows as `shown`."""
    today = date(shown.year, shown.month, shown.day)
    for later in range(3):
        day = today + timedelta(days=later)
        for time in times:
            hour, minute = map(int, time.split(":"))
            at = clock.instant(zone, LocalTime(day.year, day.month, day.day, hour, minute))
            # In the hour that comes twice in autumn, a later time may be in the past.
            if at > now:
                return at
    raise ValueError("no part of the day begins within two days")
