"""HTTP/1.1 with kept connections, on ``http.client``; and the rule for repeats.

A request is repeated only if its caller marks it as repeatable. Repeats are bounded by number and
by time, and wait with jitter, or as long as ``Retry-After`` says.
"""

from __future__ import annotations

import http.client
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from .errors import ProblemError, TidegateError, UnexpectedAnswer, Unreachable, problem

VERSION = "0.1.0"
MAX_ANSWER_BYTES = 1 << 30
MAX_IDLE_CONNECTIONS = 64
# A connection that was idle for longer is not used again, as the server may be closing it.
MAX_IDLE_SECONDS = 15.0
MIN_BACKOFF = 0.1
MAX_BACKOFF = 10.0
MAX_RETRY_AFTER = 60.0
_PROBLEM = "application/problem+json"
_SAFE_TWICE = frozenset(("GET", "PUT", "DELETE"))
_CLOSED = (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError)


class Answer(NamedTuple):
    """An answer with a status below 300."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """Return the body as a JSON value, None if it is empty."""
        if not self.body:
            return None
        try:
            return json.loads(self.body)
        except ValueError as error:
            raise UnexpectedAnswer(f"the answer is not JSON: {error}") from error


class RetryPolicy(NamedTuple):
    """How often and how long a repeatable request is repeated."""

    repeats: int = 5
    """At most this many repeats; 0 repeats nothing."""
    seconds: float = 30.0
    """No repeat begins later than this after the first try."""


def backoff(tries: int, least: float = MIN_BACKOFF, most: float = MAX_BACKOFF) -> float:
    """Return the wait after the failed try number ``tries``, from 1: doubled, half of it random."""
    span = min(most, least * 2.0 ** min(tries - 1, 30))
    return span * (0.5 + random.random() / 2)


def dumps(value: Any) -> bytes:
    """Return compact JSON. NaN and infinite numbers are refused, as JSON has none."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def path(*segments: str) -> str:
    """Return ``/v1/...`` with every segment percent-encoded."""
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


class Transport:
    """The connections to one server. Threads may share it."""

    def __init__(
        self,
        url: str,
        token: str | None,
        timeout: float,
        retries: RetryPolicy,
        traceparent: Callable[[], str | None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"an http:// or https:// URL is expected, not {url!r}")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("the URL must have no credentials, query or fragment")
        self.url = url if "://" in url else f"http://{url}"
        self.timeout = timeout
        self.retries = retries
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._headers = {"accept": "application/json", "user-agent": f"tidegate-python/{VERSION}"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"
        self._traceparent = traceparent
        self._sleep = sleep
        self._idle: list[tuple[http.client.HTTPConnection, float]] = []
        self._closed = False
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the idle connections; those in use are closed when their requests end."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection, _ in idle:
            connection.close()

    def request(
        self,
        method: str,
        target: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        repeatable: bool = True,
    ) -> Answer:
        """Send a request, and repeat it as the policy says; see :meth:`send`."""
        tries, began = 0, time.monotonic()
        while True:
            tries += 1
            try:
                return self.send(method, target, query=query, body=body, headers=headers, wait=wait)
            except TidegateError as error:
                if not repeatable or not error.retryable or tries > self.retries.repeats:
                    raise
                pause = backoff(tries)
                if error.retry_after is not None:
                    pause = min(error.retry_after, MAX_RETRY_AFTER) + pause / 10
                if time.monotonic() + pause - began > self.retries.seconds:
                    raise
                self._sleep(pause)

    def send(
        self,
        method: str,
        target: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        timeout: float | None = None,
    ) -> Answer:
        """Send a request once. ``wait`` is the time that the request makes the server wait.

        ``timeout`` replaces that of this transport.

        Raises :class:`~tidegate.errors.ProblemError` for a status from 300 on, and
        :class:`~tidegate.errors.Unreachable` if no whole answer came.
        """
        all_headers = dict(self._headers)
        if body is not None:
            all_headers["content-type"] = "application/json"
        if trace := self._traceparent():
            all_headers["traceparent"] = trace
        if headers:
            all_headers.update(headers)
        if query:
            target = f"{target}?{_query(query)}"
        timeout = (self.timeout if timeout is None else timeout) + wait
        answer = self._exchange(method, self._prefix + target, body, all_headers, timeout)
        if answer.status < 300:
            return answer
        raise _problem_of(answer)

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str], timeout: float
    ) -> Answer:
        while True:
            connection, is_reused = self._connection(timeout)
            try:
                connection.request(method, target, body, headers)
                response = connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # The server closed an idle connection before it read the request: nothing was
                # processed, so another connection takes the same request.
                if is_reused and method in _SAFE_TWICE and isinstance(error, _CLOSED):
                    continue
                raise Unreachable(f"no answer from {self.url}: {_cause(error)}") from error
            try:
                content = response.read(MAX_ANSWER_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                raise Unreachable(f"{self.url} broke its answer: {_cause(error)}") from error
            # A read of so many bytes does not fail when the connection ends before them.
            if response.length and len(content) <= MAX_ANSWER_BYTES:
                connection.close()
                raise Unreachable(f"{self.url} broke its answer")
            if len(content) > MAX_ANSWER_BYTES:
                connection.close()
                raise UnexpectedAnswer("the answer has more than 1 GiB")
            if response.will_close:
                connection.close()
            else:
                self._keep(connection)
            return Answer(response.status, response.headers, content)

    def stream(
        self, target: str, query: Mapping[str, Any], headers: Mapping[str, str], silence: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        """Open an endless answer. It fails when nothing comes for ``silence`` seconds."""
        connection = self._open(silence)
        address = self._prefix + target + (f"?{_query(query)}" if query else "")
        try:
            all_headers = {**self._headers, "accept": "text/event-stream", **headers}
            connection.request("GET", address, None, all_headers)
            response = connection.getresponse()
            if response.status >= 300:
                content = response.read(MAX_ANSWER_BYTES)
                raise _problem_of(Answer(response.status, response.headers, content))
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Unreachable(f"no answer from {self.url}: {_cause(error)}") from error
        except ProblemError:
            connection.close()
            raise
        return connection, response

    def _connection(self, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            connection, since = self._idle.pop() if self._idle else (None, 0.0)
        if connection is None:
            return self._open(timeout), False
        if time.monotonic() - since > MAX_IDLE_SECONDS:
            connection.close()
            return self._open(timeout), False
        connection.timeout = timeout
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        return connection, True

    def _open(self, timeout: float) -> http.client.HTTPConnection:
        # Names under `localhost` are this machine (RFC 6761), and not every resolver knows it.
        host = "127.0.0.1" if self._host.endswith(".localhost") else self._host
        if self._tls is None:
            return http.client.HTTPConnection(host, self._port, timeout=timeout)
        return http.client.HTTPSConnection(host, self._port, timeout=timeout, context=self._tls)

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append((connection, time.monotonic()))
                return
        connection.close()


def _problem_of(answer: Answer) -> ProblemError:
    document: Any = None
    if answer.headers.get_content_type() in (_PROBLEM, "application/json"):
        try:
            document = json.loads(answer.body)
        except ValueError:
            document = None
    if not isinstance(document, dict):
        detail = "the answer is not a problem document, so it may not be tidegate's"
        document = {"title": f"HTTP {answer.status}", "detail": detail}
    try:
        retry_after = max(0.0, float(answer.headers.get("retry-after", "")))
    except ValueError:
        retry_after = None
    return problem(answer.status, document, retry_after, answer.headers.get("x-request-id"))


def _query(query: Mapping[str, Any]) -> str:
    texts = {
        name: ("true" if value else "false") if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    return urlencode(texts, doseq=True)


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__
