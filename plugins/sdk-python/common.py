"""What throttlers and retry strategies share. An author imports `throttler` or `retry`.

A component contains the memory of the interpreter after all imports, and each call begins with a copy of it. Everything that
is possible at import is therefore done at import.
"""

import gc
import json
import random
import sys
from typing import Any, Callable, List, Optional

from componentize_py_types import Err
from wit_world.imports import clock as host_clock
from wit_world.imports import jobs, types
from wit_world.imports import log as host_log
from wit_world.imports import metrics as host_metrics

# An instance lives for one call. A collection would write to all objects, and a page of memory that a call writes to is copied
# first: with 100 candidates it would take a quarter of the call.
gc.disable()

LocalTime = host_clock.LocalTime
# The parts of the time of day may be absent.
LocalTime.__init__.__defaults__ = (0, 0, 0, 0)


def string(value: Any, name: str) -> str:
    """A string in the form of the contract. The runtime would trap without a message on anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string, not {value!r}")
    return value


def whole(value: Any, name: str, least: int, most: int, range: Optional[str] = None) -> int:
    """A whole number in the form of the contract."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number of {range or f'{least} to {most}'}, not {value!r}")
    return value


def number(value: Any, name: str) -> float:
    """A number in the form of the contract."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {value!r}")
    return float(value)


def instant(at: Any, name: str) -> int:
    """Milliseconds since 1970, in the form of the contract."""
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < 2**63:
        raise ValueError(f"{name} must be milliseconds since 1970, not {at!r}")
    return int(at)


def text(words: Any) -> Optional[str]:
    """A text for people, in the form of the contract."""
    return None if words is None else str(words)


_scan = json.JSONDecoder().scan_once
write_json = json.JSONEncoder(separators=(",", ":")).encode


def read_json(text: str) -> Any:
    """The value of a JSON text."""
    try:
        # `json.loads` also permits space around the value, and needs three times as long for a small configuration.
        value, end = _scan(text, 0)
    except StopIteration:
        return json.loads(text)
    return value if end == len(text) else json.loads(text)


class Log:
    """The log: `tidegate plugin logs` shows it. `print` writes there too."""

    def debug(self, *values: Any) -> None:
        _line(host_log.Level.DEBUG, values)

    def info(self, *values: Any) -> None:
        _line(host_log.Level.INFO, values)

    def warn(self, *values: Any) -> None:
        _line(host_log.Level.WARN, values)

    def error(self, *values: Any) -> None:
        _line(host_log.Level.ERROR, values)


def _line(level: Any, values: Any) -> None:
    host_log.write(level, " ".join(map(str, values)))


log = Log()


class _Printed:
    """Logs printed lines. A component has no standard output, and writing to it would trap."""

    def __init__(self, write: Callable[..., None]):
        self._write, self._rest = write, ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._write(line)
        return len(text)

    def flush(self) -> None:
        pass


_output, _errors = _Printed(log.info), _Printed(log.error)


def listen() -> None:
    """Called in each call and not at import: modules load while the component is built, without a log."""
    sys.stdout, sys.stderr = _output, _errors


def begin(ctx: Any) -> Any:
    """Sets the random seed and the output of a call, and reads its configuration."""
    listen()
    random.seed(ctx.seed)
    return read_json(ctx.config)


def attribute(self: Any, name: str) -> Optional[str]:
    """The value of an attribute; None if the job has none of that name."""
    for own in self.attributes:
        if own.name == name:
            return own.value
    return None


types.Job.attribute = attribute


def data_of(job: Any) -> Any:
    """The data of a candidate, or of the failed job; None if it has none. Needs `needs_data`."""
    text = jobs.data(job.id)
    return None if text is None else read_json(text)


class Clock:
    """The clock. It does not advance during a call."""

    def now(self) -> int:
        """The time of the decision, in milliseconds since 1970. 0 in `check`."""
        return host_clock.now()

    def local(self, zone: str, at: Optional[int] = None) -> host_clock.Shown:
        """What a zone of the IANA time zone database, such as "Europe/Berlin", shows at an instant, by default now: `time`
        (a `LocalTime`), `weekday` (1 is Monday) and `offset` in seconds. Raises `ValueError` with what is wrong."""
        at = host_clock.now() if at is None else instant(at, "at")
        return _or_value_error(host_clock.local, string(zone, "zone"), at)

    def instant(self, zone: str, time: LocalTime) -> int:
        """The instant at which `zone` shows `time`, such as `LocalTime(2026, 3, 1, hour=9)`, in milliseconds since 1970. If it
        shows it twice, the first one. If it skips it, the instant of the change. Raises `ValueError` with what is wrong."""
        parts = (whole(getattr(time, name), name, least, most) for name, least, most in _PARTS)
        return _or_value_error(host_clock.instant, string(zone, "zone"), LocalTime(*parts))


_PARTS = (
    ("year", -9999, 9999),
    ("month", 1, 12),
    ("day", 1, 31),
    ("hour", 0, 23),
    ("minute", 0, 59),
    ("second", 0, 59),
    ("millisecond", 0, 999),
)


def _or_value_error(call: Callable, *given: Any) -> Any:
    try:
        return call(*given)
    except Err as refused:
        raise ValueError(refused.value) from None


clock = Clock()


class Metrics:
    """Metrics of the plugin's own, for operators: `tidegate_plugin_counter_total` and `tidegate_plugin_gauge`. A name has 1 to 64
    bytes of `a-z`, `0-9` and `_`, a label at most 64 bytes. What exceeds a bound of the contract is left out."""

    def add(self, name: str, label: str = "", amount: float = 1) -> None:
        """Adds to a counter. A negative amount is left out."""
        host_metrics.add(string(name, "name"), string(label, "label"), number(amount, "amount"))

    def set(self, name: str, label: str, value: float) -> None:
        """Sets a gauge."""
        host_metrics.set(string(name, "name"), string(label, "label"), number(value, "value"))


metrics = Metrics()


class Plugin:
    """The declarations of a plugin. A call contains only what is declared."""

    about: str = ""
    """A sentence for operators."""
    config_schema: Any = None
    """JSON Schema of the configuration, as a dict or as text."""
    state_version: int = 0
    """The version of the state's format. With another version the state starts empty."""
    group_by: List[str] = []
    """Attributes that group the running jobs; '*' for any, if the configuration names them."""
    needs_running_jobs: bool = False
    """Whether it calls `running.page`."""
    needs_data: bool = False
    """Whether it calls `data_of`."""
    needs_ended: bool = False
    """Whether it reads `round.ended`."""
    needs_earlier: bool = False
    """Whether it reads `job.earlier`. A retry strategy always receives it."""
    waiting_by: List[str] = []
    """Attributes that group what waits: at most 2, which the queue's `partition_by` and `partition_then_by` name. '*' permits both."""

    def check(self, config: Any):
        """The errors of a configuration: pairs of a JSON pointer and a message."""
        return []

    def describe(self):
        schema = self.config_schema
        text = schema if schema is None or isinstance(schema, str) else write_json(schema)
        needs = (self.needs_running_jobs, self.needs_data, self.needs_ended, self.needs_earlier)
        return types.Description(self.about, text, self.state_version, list(self.group_by), *needs, list(self.waiting_by))

    def check_config(self, config: str):
        listen()
        try:
            return [types.Problem(str(path), str(message)) for path, message in self.check(read_json(config)) or []]
        except Exception as wrong:
            return [types.Problem("", f"{type(wrong).__name__}: {wrong}")]


def failed(wrong: Exception) -> Err:
    """Logs an exception of the author's code, and returns the call's error. Otherwise it would trap without a message."""
    if isinstance(wrong, Err) and isinstance(wrong.value, str):
        return wrong
    summary = f"{type(wrong).__name__}: {wrong}"
    lines, place = [summary], wrong.__traceback__
    # Without source lines: a component has no files, and opening one traps.
    while place is not None:
        code = place.tb_frame.f_code
        lines.append(f"    at {code.co_name} ({code.co_filename}:{place.tb_lineno})")
        place = place.tb_next
    log.error("\n".join(lines))
    return Err(summary)
