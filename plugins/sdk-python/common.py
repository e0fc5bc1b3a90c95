"""Shared by throttlers and retry strategies. An author imports `throttler` or `retry`."""

import functools
import json
import random
import sys
import traceback
from typing import Any, Callable, List, Optional

from componentize_py_types import Err
from wit_world.imports import jobs, log, types


def _line(level) -> Callable[..., None]:
    return lambda *values: log.write(level, " ".join(str(value) for value in values))


debug, info, warn, error = (_line(level) for level in (log.Level.DEBUG, log.Level.INFO, log.Level.WARN, log.Level.ERROR))


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


def _listen() -> None:
    """Called in each call and not at import: modules load while the component is built, without a log."""
    sys.stdout, sys.stderr = _Printed(info), _Printed(error)


def _told(wrong: Exception) -> str:
    """The error and its place, without source lines: a component has no files, and opening one traps."""
    frames = (f"    at {frame.f_code.co_name} ({frame.f_code.co_filename}:{line})" for frame, line in traceback.walk_tb(wrong.__traceback__))
    return "\n".join([f"{type(wrong).__name__}: {wrong}", *frames])


def begin(ctx) -> Any:
    """Sets the random seed and the output of a call, and reads its configuration."""
    _listen()
    random.seed(ctx.seed)
    return json.loads(ctx.config)


def attribute(job, name: str) -> Optional[str]:
    """The value of a job's attribute; None if it has none of that name."""
    return next((attribute.value for attribute in job.attributes if attribute.name == name), None)


def data_of(job) -> Any:
    """The data of a candidate, or of the failed job; None if it has none. Needs `needs_data`."""
    text = jobs.data(job.id)
    return None if text is None else json.loads(text)


def instant(at: Any, name: str) -> int:
    """Milliseconds since 1970, in the form of the contract."""
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < 2**63:
        raise ValueError(f"{name} must be milliseconds since 1970, not {at!r}")
    return int(at)


def text(words: Any) -> Optional[str]:
    """A text for people, in the form of the contract."""
    return None if words is None else str(words)


class Plugin:
    """The declarations of a plugin. A call contains only what is declared."""

    about: str = ""
    """A sentence for operators."""
    config_schema: Any = None
    """JSON Schema of the configuration, as a dict or as text."""
    state_version: int = 0
    """The version of the state's form; after a change of it the state starts empty."""
    group_by: List[str] = []
    """Attributes that group the running jobs; '*' for any, if the configuration names them."""
    needs_running_jobs: bool = False
    needs_data: bool = False
    needs_ended: bool = False

    def check(self, config: Any):
        """The problems of a configuration: pairs of a JSON pointer and a message."""
        return []

    def describe(self):
        schema = self.config_schema
        text = schema if schema is None or isinstance(schema, str) else json.dumps(schema)
        needs = (self.needs_running_jobs, self.needs_data, self.needs_ended)
        return types.Description(self.about, text, self.state_version, list(self.group_by), *needs)

    def check_config(self, config: str):
        _listen()
        try:
            return [types.Problem(str(path), str(message)) for path, message in self.check(json.loads(config)) or []]
        except Exception as wrong:
            return [types.Problem("", f"{type(wrong).__name__}: {wrong}")]


def guarded(call: Callable) -> Callable:
    """Turns an exception of the author's code into the call's error; otherwise it would trap without a message."""

    @functools.wraps(call)
    def caught(*given):
        try:
            return call(*given)
        except Exception as wrong:
            if isinstance(wrong, Err) and isinstance(wrong.value, str):
                raise
            error(_told(wrong))
            raise Err(f"{type(wrong).__name__}: {wrong}") from wrong

    return caught
