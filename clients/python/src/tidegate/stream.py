"""The stream of committed changes: server-sent events that survive broken connections."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ._http import Transport, backoff
from .errors import ProblemError, UnexpectedAnswer, Unreachable

# The server sends a comment at least this often; a longer silence is a broken connection.
MAX_SILENCE_SECONDS = 60.0
MAX_LINE_BYTES = 1 << 20


class Change(NamedTuple):
    """One event of the stream."""

    name: str
    """``ready``, ``job``, ``removed``, ``queue``, ``job_type``, ``worker`` or ``skipped``."""
    id: str | None
    """Its id, for ``after`` of a later stream."""
    data: Any
    """Its data, as the API describes it."""


class Stream(Iterator[Change]):
    """Changes until :meth:`close`. After a break it connects again, behind the last event."""

    def __init__(self, transport: Transport, query: Mapping[str, Any], after: str | None) -> None:
        self._http = transport
        self._query = dict(query)
        self.last_id = after
        """The id of the last event."""
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._closed = False
        self._failures = 0

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the stream."""
        self._closed = True
        self._disconnect()

    def __next__(self) -> Change:
        while not self._closed:
            try:
                change = self._read()
            except (Unreachable, ProblemError) as error:
                self._disconnect()
                if not error.retryable:
                    raise
                self._failures += 1
                time.sleep(backoff(self._failures))
                continue
            if change is not None:
                return change
        raise StopIteration

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._response = None

    def _read(self) -> Change | None:
        if self._response is None:
            headers = {"last-event-id": self.last_id} if self.last_id else {}
            query = {name: value for name, value in self._query.items() if value is not None}
            self._connection, self._response = self._http.stream(
                "/v1/stream", query, headers, MAX_SILENCE_SECONDS
            )
        name, data, event_id = "message", [], None
        while True:
            try:
                line = self._response.readline(MAX_LINE_BYTES)
            except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
                raise Unreachable(f"the stream broke: {error}") from error
            if not line:
                self._disconnect()
                return None
            if len(line) >= MAX_LINE_BYTES:
                raise UnexpectedAnswer("a line of the stream has more than 1 MiB")
            field, _, value = line.decode().rstrip("\r\n").partition(":")
            value = value.removeprefix(" ")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
            elif field == "id":
                event_id = value
            elif not field and not value and data:
                self._failures = 0
                if event_id:
                    self.last_id = event_id
                return Change(name, event_id, json.loads("\n".join(data)))
