"""What a handler gets: the job of its attempt, with progress, log lines, checkpoint and abort."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from ._http import dumps
from .codec import encode, instant
from .errors import JobAborted

T = TypeVar("T")
Level = Literal["trace", "debug", "info", "warn", "error"]

MAX_MESSAGE_BYTES = 4096
MAX_CHECKPOINT_BYTES = 64 << 10
MAX_DETAILS_BYTES = 16 << 10
# Lines that wait for the next heartbeat; the oldest go first. A request has at most 1000.
MAX_PENDING_LINES = 1000


def cut(text: str, most: int = MAX_MESSAGE_BYTES) -> str:
    """Return ``text``, at most ``most`` bytes of it in UTF-8."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= most else data[:most].decode("utf-8", "ignore")


class JobContext(Generic[T]):
    """The job of the running attempt. It exists once for each attempt."""

    def __init__(self, raw: Mapping[str, Any], attempt: int, data: T) -> None:
        self.raw = raw
        """Every field of the job, as in the API."""
        self.id: str = raw["id"]
        """The job's id: make the work idempotent by it."""
        self.type: str = raw["type"]
        self.attempt = attempt
        """The number of this attempt, from 1."""
        self.max_attempts: int = raw["max_attempts"]
        self.data = data
        """What the job carries, as the type of the handler's first parameter."""
        self.attributes: dict[str, Any] = dict(raw.get("attributes") or {})
        self.headers: dict[str, str] = dict(raw.get("headers") or {})
        self.checkpoint: Any = raw.get("checkpoint")
        """What an earlier attempt has stored, or None; see :meth:`save_checkpoint`."""
        self.aborted = threading.Event()
        """Set when the attempt is over: the job was cancelled, or its lease was lost."""
        self.abort_reason: str | None = None
        """``cancelled``, ``lease_lost`` or ``stopping``, once ``aborted`` is set."""
        self._lock = threading.Lock()
        self._progress: tuple[float, str | None] | None = None
        self._checkpoint: tuple[Any] | None = None
        self._log: list[dict[str, Any]] = []
        self._on_change = _nothing
        self._on_abort = _nothing

    @property
    def traceparent(self) -> str | None:
        """The job's W3C trace context; enqueues within the handler carry it on."""
        for name, value in self.headers.items():
            if name.lower() == "traceparent":
                return value
        return None

    def raise_if_aborted(self) -> None:
        """Raise :class:`~tidegate.errors.JobAborted` if the attempt is over."""
        if self.aborted.is_set():
            raise JobAborted(self.abort_reason or "cancelled")

    def sleep(self, seconds: float) -> None:
        """Wait, and raise :class:`~tidegate.errors.JobAborted` if the attempt is over before."""
        self.aborted.wait(seconds)
        self.raise_if_aborted()

    def progress(self, percent: float, note: str | None = None) -> None:
        """Show progress, 0 to 100. It is sent within a second, and only the latest."""
        if not 0 <= percent <= 100:
            raise ValueError(f"progress must be 0 to 100, not {percent}")
        with self._lock:
            self._progress = (percent, None if note is None else cut(note))
        self._on_change()

    def log(self, text: str, level: Level = "info", **fields: Any) -> None:
        """Add a line to the job's log. It is sent within a second, or with the report."""
        # Lines with a time are kept once, although a request is repeated.
        now = datetime.fromtimestamp(time.time()).astimezone()
        line: dict[str, Any] = {"time": instant(now), "level": level, "text": text}
        if fields:
            line["fields"] = json.loads(json.dumps(encode(fields), default=str))
        with self._lock:
            self._log.append(line)
            del self._log[:-MAX_PENDING_LINES]
        self._on_change()

    def save_checkpoint(self, value: Any) -> None:
        """Store what the next attempt needs to go on: any JSON value of at most 64 KiB.

        It is sent within a second, and with a report that does not succeed.
        """
        value = encode(value)
        if len(dumps(value)) > MAX_CHECKPOINT_BYTES:
            raise ValueError("a checkpoint has at most 64 KiB")
        with self._lock:
            self._checkpoint = (value,)
        self.checkpoint = value
        self._on_change()

    def _abort(self, reason: str) -> None:
        with self._lock:
            if self.abort_reason is not None:
                return
            self.abort_reason = reason
        self.aborted.set()
        self._on_abort()

    def _has_changes(self) -> bool:
        with self._lock:
            return bool(self._progress or self._checkpoint or self._log)

    def _take_changes(self) -> dict[str, Any]:
        """Return the fields of a heartbeat that are not sent yet."""
        with self._lock:
            fields: dict[str, Any] = {}
            if self._progress is not None:
                fields["progress"] = self._progress[0]
                if self._progress[1] is not None:
                    fields["note"] = self._progress[1]
            if self._checkpoint is not None:
                fields["checkpoint"] = self._checkpoint[0]
            if self._log:
                fields["log"] = self._log
            self._progress, self._checkpoint, self._log = None, None, []
            return fields

    def _put_back(self, fields: dict[str, Any]) -> None:
        """Take back the fields of a heartbeat without an answer, unless there are newer ones."""
        with self._lock:
            if "progress" in fields and self._progress is None:
                self._progress = (fields["progress"], fields.get("note"))
            if "checkpoint" in fields and self._checkpoint is None:
                self._checkpoint = (fields["checkpoint"],)
            self._log = [*fields.get("log", ()), *self._log][-MAX_PENDING_LINES:]


def _nothing() -> None:
    pass
