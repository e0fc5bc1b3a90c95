"""Push handlers: what a type's ``target`` URL serves, in ASGI and WSGI applications.

::

    push = Push(secrets=os.environ["TIDEGATE_SECRET"])

    @push("resize")
    def resize(image: Image) -> dict: ...

    app.mount("/jobs", push.asgi)        # FastAPI, Starlette

The signature of every request is checked. A handler that returns :class:`Later`, or that is
registered with ``background=True``, answers 202 and reports to the callback when it has ended.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import json
import logging
import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from ._handler import Handler, Later, Report, snoozed_until
from ._http import RetryPolicy, Transport, dumps
from .codec import encode, instant, parse_instant
from .context import JobContext, cut
from .errors import Conflict, NotFound, Snooze, TidegateError

__all__ = ["Callback", "Later", "Push", "PushJob", "PushResponse", "Refused", "verify"]
F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger("tidegate.push")

DEFAULT_TOLERANCE_SECONDS = 300
MAX_BODY_BYTES = 8 << 20
# How often a background handler learns whether its job was cancelled.
BEAT_SECONDS = 10.0
FLUSH_SECONDS = 1.0
# How long a report waits for the heartbeat that is under way.
MAX_BEAT_WAIT = 5.0
NOT_RETRYABLE = 489


class Refused(TidegateError):
    """The request is not a push of the server: its signature, its time or its body is wrong."""


def verify(
    secrets: str | Sequence[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float | None = None,
    tolerance_seconds: float = DEFAULT_TOLERANCE_SECONDS,
) -> None:
    """Check a signature, as Standard Webhooks describe.

    ``secrets`` are those of the type's ``signing_secret``: one, or several during a rotation. Names
    in ``headers`` are in lower case. ``now`` is in seconds since the Unix epoch.

    Raises :class:`Refused` if the signature is wrong, or its time further from ``now`` than the
    tolerance.
    """
    message_id = headers.get("webhook-id", "")
    timestamp = headers.get("webhook-timestamp", "")
    try:
        age = abs((time.time() if now is None else now) - int(timestamp))
    except ValueError:
        raise Refused("webhook-timestamp is missing, or is not a number of seconds") from None
    if age > tolerance_seconds:
        raise Refused("webhook-timestamp is too far from the present: a replay, or a wrong clock")
    signed = f"{message_id}.{timestamp}.".encode() + body
    given = headers.get("webhook-signature", "").split()
    is_genuine = False
    for secret in _keys(secrets):
        digest = hmac.new(secret, signed, hashlib.sha256).digest()
        wanted = b"v1," + base64.b64encode(digest)
        for signature in given[:16]:
            is_genuine |= hmac.compare_digest(wanted, signature.encode())
    if not is_genuine:
        raise Refused("no signature matches a secret")


def _keys(secrets: str | Sequence[str]) -> list[bytes]:
    texts = [secrets] if isinstance(secrets, str) else list(secrets)
    keys = []
    for text in texts:
        try:
            coded = text.removeprefix("whsec_")
            key = text.encode() if coded == text else base64.b64decode(coded, validate=True)
        except binascii.Error:
            raise ValueError("what follows whsec_ in a signing secret must be base64") from None
        if not key:
            raise ValueError("a signing secret must not be empty")
        keys.append(key)
    if not keys:
        raise ValueError("at least one signing secret is needed")
    return keys


class Callback(NamedTuple):
    """Where the result of an attempt goes that was answered with 202.

    It can be stored as JSON (``callback._asdict()``) and used by another process
    (``Callback(**stored)``).
    """

    url: str
    token: str
    attempt: int

    def succeed(self, result: Any = None) -> None:
        """Report success. A repeat is harmless; see :meth:`report` for errors."""
        self.report({"status": "succeeded", "result": encode(result)})

    def fail(self, message: str, *, retryable: bool = True, details: Any = None) -> None:
        """Report a failure, which is retried while attempts are left unless not ``retryable``."""
        report: Report = {"status": "failed", "message": cut(message), "retryable": retryable}
        if details is not None:
            report["error"] = encode(details)
        self.report(report)

    def release(self, message: str = "released") -> None:
        """Hand the job back; the attempt does not count."""
        self.report({"status": "released", "message": cut(message)})

    def snooze(
        self, seconds: float | None = None, message: str = "snoozed", *, until: Any = None
    ) -> None:
        """Hand the job back for some seconds, or until an instant; the attempt does not count."""
        error = Snooze(seconds, message, until=until)
        self.report({"status": "snoozed", "message": cut(message), **snoozed_until(error)})

    def report(self, report: Report) -> None:
        """Send a report, again while the server does not answer.

        Raises :class:`~tidegate.errors.Conflict` or :class:`~tidegate.errors.NotFound` if the
        attempt is over.
        """
        transport, target = self._transport()
        try:
            transport.request(
                "POST", target, body=dumps({**report, "attempt": self.attempt}),
                headers={"authorization": f"Bearer {self.token}"},
            )  # fmt: skip
        finally:
            transport.close()

    def heartbeat(
        self,
        progress: float | None = None,
        note: str | None = None,
        checkpoint: Any = None,
        log: list[Any] | None = None,
    ) -> bool:
        """Send a heartbeat, once, and return whether the job was cancelled."""
        fields = {"progress": progress, "note": note, "checkpoint": checkpoint, "log": log}
        body = {name: value for name, value in fields.items() if value is not None}
        return self._beat(body)

    def _beat(self, fields: Mapping[str, Any]) -> bool:
        transport, target = self._transport()
        try:
            # One that hangs leaves time for another.
            answer = transport.send(
                "POST", f"{target}/heartbeat", body=dumps({**fields, "attempt": self.attempt}),
                headers={"authorization": f"Bearer {self.token}"}, timeout=BEAT_SECONDS,
            )  # fmt: skip
            return bool(answer.json()["cancel"])
        finally:
            transport.close()

    def _transport(self) -> tuple[Transport, str]:
        parts = urlsplit(self.url)
        base = f"{parts.scheme}://{parts.netloc}"
        return Transport(base, None, 30.0, RetryPolicy(1000, 60.0), lambda: None), parts.path


class PushJob(JobContext[Any]):
    """The job of a pushed attempt. It has a ``callback`` in addition."""

    def __init__(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        traces = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        job = {**body, "headers": {**(body.get("headers") or {}), **traces}}
        super().__init__(job, body["attempt"], body.get("data"))
        self.callback = Callback(body["callback"]["url"], body["callback"]["token"], self.attempt)
        self.request_headers = dict(headers)
        """The headers of the request, with those of the job among them, names in lower case."""


class PushResponse(NamedTuple):
    """The answer to a push."""

    status: int
    headers: dict[str, str]
    body: bytes


class Push:
    """Handlers of pushed types, for any HTTP framework.

    ``secrets`` are those of the types' ``signing_secret``; two while one is replaced. None accepts
    requests without a signature: only behind another check of the caller. ``clock`` is in seconds
    since the Unix epoch; a test passes that of its development server.
    """

    def __init__(
        self,
        secrets: str | Sequence[str] | None,
        *,
        tolerance_seconds: float = DEFAULT_TOLERANCE_SECONDS,
        max_body_bytes: int = MAX_BODY_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if secrets is not None:
            _keys(secrets)
        self._secrets, self._tolerance, self._clock = secrets, tolerance_seconds, clock
        self._max_body = max_body_bytes
        self._handlers: dict[str, tuple[Handler, bool]] = {}
        self._background: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def __call__(self, *types: str, background: bool = False) -> Callable[[F], F]:
        """Register the decorated function as the handler of job types.

        With ``background`` the answer is 202 at once, and the function runs in a thread of this
        process, which reports when it has ended: for work that takes longer than a request should.
        """
        if not types:
            raise TypeError("a handler needs at least one job type")

        def register(function: F) -> F:
            for name in types:
                if name in self._handlers:
                    raise ValueError(f"the job type {name} has a handler already")
                self._handlers[name] = (Handler(types, function), background)
            return function

        return register

    def handle(self, method: str, headers: Mapping[str, str], body: bytes) -> PushResponse:
        """Answer a request; names in ``headers`` are in any letter case."""
        if method != "POST":
            return _problem(405, "a push is a POST", {"allow": "POST"})
        if len(body) > self._max_body:
            return _problem(413, f"the body has more than {self._max_body} bytes")
        lower = {name.lower(): value for name, value in headers.items()}
        try:
            if self._secrets is not None:
                verify(
                    self._secrets, lower, body,
                    now=self._clock(), tolerance_seconds=self._tolerance,
                )  # fmt: skip
        except Refused as refused:
            return _problem(401, str(refused))
        try:
            document = json.loads(body)
            job = PushJob(document, lower)
        except (ValueError, KeyError, TypeError):
            return _problem(400, "the body is not a push in JSON")
        registered = self._handlers.get(job.type)
        if registered is None:
            return _problem(404, f"no handler for the type {job.type}")
        handler, is_background = registered
        if is_background:
            thread = threading.Thread(
                target=self._run_in_background, args=(handler, job), name="tidegate-push"
            )
            with self._lock:
                self._background.add(thread)
            thread.start()
            return PushResponse(202, {}, b"")
        return self._run(handler, job)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the handlers that run in the background. Returns False after ``timeout``."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                thread = next(iter(self._background), None)
            if thread is None:
                return True
            thread.join(None if until is None else max(0.0, until - time.monotonic()))
            if thread.is_alive():
                return False

    def _run(self, handler: Handler, job: PushJob) -> PushResponse:
        is_later: list[bool] = []
        report = handler.report(job, is_later)
        if job._has_changes():
            try:
                job.callback._beat(job._take_changes())
            except TidegateError as error:
                logger.info("what %s shows was not sent: %s", job.id, error)
        if is_later:
            return PushResponse(202, {}, b"")
        return _response(report)

    def _run_in_background(self, handler: Handler, job: PushJob) -> None:
        ended = threading.Event()
        beats = threading.Thread(target=_keep_beating, args=(job, ended), daemon=True)
        beats.start()
        try:
            report = handler.report(job, [])
            ended.set()
            # A heartbeat that came after the report would be refused, and its lines lost.
            beats.join(MAX_BEAT_WAIT)
            if report is not None:
                rest = job._take_changes()
                if rest.get("log"):
                    report["log"] = rest["log"]
                if report["status"] != "succeeded" and "checkpoint" in rest:
                    report["checkpoint"] = rest["checkpoint"]
                job.callback.report(report)
        except TidegateError as error:
            logger.warning("the result of %s is dropped: %s", job.id, error)
        finally:
            ended.set()
            with self._lock:
                self._background.discard(threading.current_thread())

    async def asgi(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Mapping[str, Any]]],
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        """Serve as an ASGI application: ``app.mount("/jobs", push.asgi)``."""
        if scope["type"] == "lifespan":
            while True:
                message = await receive()
                await send({"type": f"{message['type']}.complete"})
                if message["type"] == "lifespan.shutdown":
                    await asyncio.to_thread(self.join)
                    return
        if scope["type"] != "http":
            raise RuntimeError("a push is an HTTP request")
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        parts, size, more = [], 0, True
        while more and size <= self._max_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
        answer = await asyncio.to_thread(self.handle, scope["method"], headers, b"".join(parts))
        names = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": names})
        await send({"type": "http.response.body", "body": answer.body})

    def wsgi(
        self, environ: Mapping[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        """Serve as a WSGI application: mount it with werkzeug's ``DispatcherMiddleware``."""
        headers = {
            name[5:].replace("_", "-").lower(): str(value)
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        try:
            length = min(int(environ.get("CONTENT_LENGTH") or 0), self._max_body + 1)
        except ValueError:
            length = 0
        body = environ["wsgi.input"].read(length) if length > 0 else b""
        answer = self.handle(environ["REQUEST_METHOD"], headers, body)
        reason = {200: "OK", 202: "Accepted"}.get(answer.status, "Refused")
        start_response(f"{answer.status} {reason}", list(answer.headers.items()))
        return [answer.body]

    def flask(self, request: Any) -> tuple[bytes, int, dict[str, str]]:
        """Answer a request of Flask: ``@app.post("/jobs")`` and ``return push.flask(request)``."""
        answer = self.handle(request.method, dict(request.headers), request.get_data())
        return answer.body, answer.status, answer.headers


def _keep_beating(job: PushJob, ended: threading.Event) -> None:
    changed = threading.Event()
    job._on_change = changed.set
    last = time.monotonic()
    while True:
        # What the handler shows is sent within a second; the end of the handler ends the beats.
        until = last + BEAT_SECONDS
        while not ended.is_set() and time.monotonic() < until:
            if changed.is_set() and time.monotonic() - last >= FLUSH_SECONDS:
                break
            ended.wait(0.05 if changed.is_set() else 0.2)
        if ended.is_set():
            return
        changed.clear()
        fields, last = job._take_changes(), time.monotonic()
        try:
            if job.callback._beat(fields):
                job._abort("cancelled")
        except TidegateError as error:
            if error.retryable:
                # It is sent again after a second.
                job._put_back(fields)
                changed.set()
            elif isinstance(error, (Conflict, NotFound)):
                job._abort("lease_lost")
                return
            else:
                logger.info("a heartbeat of %s was not taken: %s", job.id, error)


def _response(report: Report | None) -> PushResponse:
    """Return the answer that means what ``report`` does."""
    kind = {"content-type": "application/json"}
    if report is None:
        return _problem(500, "the attempt is over")
    status = report["status"]
    if status == "succeeded":
        return PushResponse(200, kind, dumps(report["result"]))
    message = report.get("message", "").encode()
    text = {"content-type": "text/plain; charset=utf-8"}
    if status == "released":
        return PushResponse(503, {**text, "tidegate-status": "released"}, message)
    if status == "snoozed":
        seconds = report.get("delay_seconds")
        if seconds is None:
            seconds = parse_instant(instant(report["run_at"])).timestamp() - time.time()
        after = {"tidegate-status": "snoozed", "retry-after": str(max(0, math.ceil(seconds)))}
        return PushResponse(503, {**text, **after}, message)
    body = {"message": report["message"]}
    if "error" in report:
        body["error"] = report["error"]
    is_final = report.get("retryable") is False
    return PushResponse(NOT_RETRYABLE if is_final else 500, kind, dumps(body))


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> PushResponse:
    kind = {"content-type": "application/json", **(headers or {})}
    return PushResponse(status, kind, dumps({"error": detail}))
