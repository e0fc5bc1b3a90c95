"""A pull worker: it leases jobs, runs their handlers, and reports.

::

    worker = Worker()

    @worker("letter", concurrency=3)
    def send(letter: Letter) -> str: ...

    worker.run()

For each handler one thread keeps a lease request open while a slot is free. A report goes with the
next lease request; while one is open, reports go together in a request of their own, so that no
result waits for a long poll. A lease request without an answer is repeated under its ``request_id``
and gets the same leases.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import queue
import random
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ._handler import Handler, Report
from ._http import backoff, dumps, path
from .client import Client, JobType
from .codec import parse_instant
from .config import Config, Plan
from .context import JobContext
from .errors import (
    Forbidden,
    NotFound,
    ProblemError,
    TidegateError,
    UnexpectedAnswer,
    Unreachable,
)

F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger("tidegate.worker")

# Most reports, and most bytes of them, in one request.
MAX_REPORTS = 100
MAX_REPORT_BYTES = 1 << 20
# How long a report is sent again to a server that does not answer.
MAX_REPORT_SECONDS = 60.0
# What a handler shows is sent at most this often.
FLUSH_SECONDS = 1.0
# How long a report waits for the heartbeat that is under way, which may carry log lines.
MAX_BEAT_WAIT = 5.0
# A heartbeat waits for its answer at least this long, unless the lease is over before.
MIN_BEAT_SECONDS = 1.0
# Most threads that send heartbeats.
MAX_BEAT_THREADS = 64
# A server that answers at once without jobs is not called in a hot loop.
MIN_POLL_SECONDS = 0.25
MAX_PAUSE_SECONDS = 60.0
REGISTER_SECONDS = 30.0
# How often the desired workers are read.
FOLLOW_SECONDS = 5.0
# The attempt of a heartbeat or a report is over, or its job is gone.
OVER_STATUS = frozenset((404, 409))
# A report that got this status is sent again, and so is one with a transient error.
REPEATED_REPORTS = frozenset((408, 429, 500, 502, 503, 504))


class _Attempt:
    """One leased attempt: what runs, and what is reported of it."""

    def __init__(self, lease: Mapping[str, Any], loop: _Loop | None, lease_seconds: float) -> None:
        raw = lease["job"]
        self.loop = loop
        self.number = 0
        """Its number among the attempts of the worker."""
        self.job: JobContext[Any] = JobContext(raw, lease["attempt"], raw.get("data"))
        self.token: str = lease["token"]
        self.path = path("jobs", raw["type"], raw["id"])
        self.lease_seconds = lease_seconds
        self.lost_at = time.monotonic() + self.lease_seconds
        self.next_beat = time.monotonic() + self.lease_seconds / 3
        self.last_beat = time.monotonic()
        self.beating = threading.Lock()
        """Held while a heartbeat is under way."""
        self.is_reported = False
        """The report was acknowledged, or nothing is to be reported."""
        self.is_finished = False
        self.is_lost = False
        """Its lease was over, by this worker's record, before the handler had ended."""
        self.report: Report = {}
        self.report_bytes = 0
        self.since = time.monotonic()

    def finish(self, report: Report) -> None:
        """Complete the report with what no heartbeat has sent."""
        rest = self.job._take_changes()
        if rest.get("log"):
            report["log"] = rest["log"]
        if report["status"] != "succeeded" and "checkpoint" in rest:
            report["checkpoint"] = rest["checkpoint"]
        report["attempt"] = self.job.attempt
        self.report = report
        self.report_bytes = len(dumps(report))
        self.since = time.monotonic()

    def carried(self) -> dict[str, Any]:
        """Return the report as a part of a lease request."""
        names = {"id": self.job.id, "type": self.job.type, "token": self.token}
        return {**self.report, **names}


class Worker:
    """A worker that runs the handlers that are registered with it.

    ``client`` defaults to one of ``TIDEGATE_URL`` and ``TIDEGATE_TOKEN``. ``name`` is the worker's
    name in lists, unique for each process. ``lease_seconds`` replaces the setting of the types.
    ``grace_seconds`` bounds how long a stop waits for running handlers; then they are aborted. None
    waits for them.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        name: str | None = None,
        wait_seconds: float = 20.0,
        max_pause_seconds: float = 10.0,
        lease_seconds: float | None = None,
        grace_seconds: float | None = None,
        config: Config | None = None,
    ) -> None:
        self.client = client or Client()
        self.name = (
            name or f"{socket.gethostname()[:64]}-{os.getpid()}-{random.randrange(1 << 24):06x}"
        )
        self.config = config or Config()
        """The declarations of the handlers' types, and what was added; see :meth:`apply`."""
        self._wait, self._max_pause = wait_seconds, max_pause_seconds
        self._lease_seconds, self._grace = lease_seconds, grace_seconds
        self._loops: list[_Loop] = []
        self._stopping = threading.Event()
        self._woken = threading.Event()
        """Set when the worker is to stop, or to register again."""
        self._failure: BaseException | None = None
        self._beats = _Heartbeats(self)
        self._outbox = _Outbox(self)
        self._main: threading.Thread | None = None

    def __call__(
        self,
        *types: str | JobType[Any],
        concurrency: int = 1,
        auto: bool = False,
        min: int = 1,  # noqa: A002
        queue: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> Callable[[F], F]:
        """Register the decorated function as the handler of job types.

        At most ``concurrency`` of its jobs run at once in this process. ``config`` declares the
        types' settings (of ``PUT /v1/job-types/{type}``), with ``queue`` as their queue; see
        :meth:`apply`.

        With ``auto``, ``concurrency`` is the maximum, and the handler follows the
        ``desired_workers`` of the types' queues: this worker's share of them, at least 1, read
        every five seconds. The token needs the scope ``read`` in addition to ``work``, and no bound
        to types.

        With ``min``, at least so many jobs are leased at once, unless the wait of a lease request
        ends: then those that are there. The types must be of one queue.
        """
        if not types:
            raise TypeError("a handler needs at least one job type")
        if not 1 <= concurrency <= 1000:
            raise ValueError("concurrency must be 1 to 1000")
        if not 1 <= min <= concurrency:
            raise ValueError(f"min must be 1 to the concurrency, {concurrency}")
        names = tuple(kind if isinstance(kind, str) else kind.name for kind in types)
        taken = {name for loop in self._loops for name in loop.handler.types}
        if double := taken.intersection(names):
            raise ValueError(f"the job type {sorted(double)[0]} has a handler already")
        if config is not None or queue is not None:
            settings = {**(config or {}), **({"queue": queue} if queue is not None else {})}
            for name in names:
                self.config.job_type(name, **settings)

        def register(function: F) -> F:
            handler = Handler(names, function)
            models = [kind.data for kind in types if isinstance(kind, JobType) and kind.data]
            if handler.data_type is None and len(types) == 1 and models:
                handler.data_type = models[0]
            self._loops.append(_Loop(self, handler, concurrency, auto=auto, least=min))
            return function

        return register

    def handler(self, job_type: str) -> Handler | None:
        """Return the handler of a type, None if it has none."""
        for loop in self._loops:
            if job_type in loop.handler.types:
                return loop.handler
        return None

    @property
    def types(self) -> list[str]:
        """The types that have a handler."""
        return [name for loop in self._loops for name in loop.handler.types]

    def apply(self, client: Client | None = None) -> Plan:
        """Apply the declared configuration, and return what was done; see :class:`Config`.

        A handler's type that is not declared is created with the defaults if it does not exist.
        ``client`` replaces that of the worker.
        """
        client = client or self.client
        config = Config()
        config.declared.update(self.config.declared)
        for name in self.types:
            if ("job type", name) not in config.declared:
                try:
                    client.request("GET", path("job-types", name))
                except NotFound:
                    config.job_type(name)
        return client.apply(config)

    def run(self) -> None:
        """Work until SIGTERM, SIGINT or :meth:`stop`; a second signal aborts what runs.

        Raises the error that ended the worker: an unknown job type, a token that is not valid.
        """
        previous = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                previous[number] = signal.signal(number, lambda *_: self._signalled())
        try:
            self.start()
            # A wait without a timeout would keep signal handlers from running on some systems.
            while self._main is not None and self._main.is_alive():
                self._main.join(0.5)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        self.join()

    def start(self) -> None:
        """Start to work, in threads."""
        if not self._loops:
            raise TidegateError("the worker has no handler: register one with @worker(TYPE)")
        if self._main is not None:
            raise TidegateError("a worker starts once")
        self._main = threading.Thread(target=self._supervise, name="tidegate-worker", daemon=True)
        self._main.start()

    def stop(self) -> None:
        """Begin to stop: no more leases; what has not begun is handed back, the rest finishes."""
        self._stopping.set()
        self._woken.set()
        self._beats.wake()
        for loop in self._loops:
            loop.wake()

    def abort(self, reason: str = "stopping") -> None:
        """Abort the running handlers."""
        for loop in self._loops:
            for attempt in loop.running():
                attempt.job._abort(reason)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end after :meth:`stop`. Raises the error that ended the worker.

        Returns False if it has not ended within ``timeout`` seconds.
        """
        if self._main is not None:
            self._main.join(timeout)
            if self._main.is_alive():
                return False
        if self._failure is not None:
            raise self._failure
        return True

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def _signalled(self) -> None:
        if self._stopping.is_set():
            self.abort()
        self.stop()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self.stop()

    def _supervise(self) -> None:
        self._beats.start()
        self._outbox.start()
        for loop in self._loops:
            loop.start()
        while not self._stopping.is_set():
            self._register()
            self._woken.wait(REGISTER_SECONDS)
            self._woken.clear()
        stopped_at = time.monotonic()
        is_aborted = False
        while any(loop.is_alive() for loop in self._loops):
            # It ends the waiting lease requests. One that has not arrived yet needs another.
            if any(loop.is_polling for loop in self._loops):
                self._deregister()
            is_late = self._grace is not None and time.monotonic() - stopped_at > self._grace
            if is_late and not is_aborted:
                is_aborted = True
                self.abort()
            for loop in self._loops:
                loop.join(0.3 / len(self._loops))
        self._outbox.stop()
        self._beats.stop()
        self._deregister()

    def _register(self) -> None:
        body = {"capacity": sum(loop.limit for loop in self._loops), "types": self.types}
        try:
            self.client._http.send("PUT", path("workers", self.name), body=dumps(body))
        except TidegateError as error:
            logger.info("the worker is not registered: %s", error)

    def _deregister(self) -> None:
        try:
            self.client._http.send("DELETE", path("workers", self.name), query={"keep_drain": True})
        except NotFound:
            pass
        except TidegateError as error:
            logger.info("the worker is not deleted from the list: %s", error)

    def _answered(self, attempt: _Attempt, status: int, error: ProblemError | None) -> bool:
        """Handle the answer to one report. A report that was not recorded is sent again.

        Returns False if that is to wait for a while.
        """
        is_of_the_moment = status in REPEATED_REPORTS or (error is not None and error.retryable)
        if status < 300:
            self._settled(attempt)
        elif is_of_the_moment and time.monotonic() - attempt.since < MAX_REPORT_SECONDS:
            self._outbox.add(attempt)
            return False
        elif status in OVER_STATUS:
            logger.warning("the result of %s is dropped: %s", attempt.job.id, error)
            self._settled(attempt)
        elif attempt.report["status"] == "succeeded" and status in (400, 413):
            # The work was done, and its result cannot be stored: another attempt would repeat it.
            logger.error("the result of %s was refused: %s", attempt.job.id, error)
            attempt.finish({"status": "failed", "message": f"its result was refused: {error}",
                            "retryable": False})  # fmt: skip
            self._outbox.add(attempt)
        elif attempt.report.keys() > {"attempt", "status", "message"} and status in (400, 413):
            logger.error("the report of %s was refused: %s", attempt.job.id, error)
            attempt.finish({"status": "failed", "message": f"its report was refused: {error}"})
            self._outbox.add(attempt)
        else:
            logger.error("the report of %s was refused: %s", attempt.job.id, error)
            self._settled(attempt)
        return True

    def _settled(self, attempt: _Attempt) -> None:
        attempt.is_reported = True
        self._beats.remove(attempt)
        if attempt.loop is not None:
            attempt.loop.settled(attempt)


class _Loop:
    """The lease requests and the slots of one handler."""

    def __init__(
        self, worker: Worker, handler: Handler, concurrency: int, *, auto: bool, least: int
    ) -> None:
        self.worker, self.handler, self.concurrency = worker, handler, concurrency
        self.limit = 1 if auto else concurrency
        """How many of its jobs may run."""
        self._is_auto, self._least = auto, least
        self.is_polling = False
        self._changed = threading.Condition()
        self._attempts: set[_Attempt] = set()
        self._running = 0
        self._carried: list[_Attempt] = []
        """Reports for the next lease request."""
        self._sent: list[_Attempt] = []
        """Those of the request that is open."""
        self._pause_until = 0.0
        self._repeated_for = 0.0
        """How long the lease request that was answered had been repeated."""
        self._spans: dict[str, float] = {}
        """How long the leases of each type last."""
        self._work: queue.SimpleQueue[_Attempt | None] = queue.SimpleQueue()
        self._slots: list[threading.Thread] = []
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        name = f"tidegate-{self.handler.types[0]}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        if self._is_auto:
            threading.Thread(target=self._follow, name=f"{name}-auto", daemon=True).start()

    @property
    def _free(self) -> int:
        return max(0, self.limit - self._running)

    def _follow(self) -> None:
        """Follow the desired workers, between 1 and the concurrency, until the worker stops."""
        while not self.worker._stopping.is_set():
            try:
                # At least one lease request keeps the queue aware of this worker.
                desired = max(1, min(self._desired(), self.concurrency))
            except Forbidden as error:
                # The scopes and bounds of a token never change.
                logger.warning(
                    "the handler of %s runs one job at a time: auto needs the scope read, and no "
                    "bound to types: %s", self.handler.types[0], error,
                )  # fmt: skip
                return
            except TidegateError as error:
                logger.info("the desired workers are unknown: %s", error)
            else:
                with self._changed:
                    has_changed, self.limit = self.limit != desired, desired
                    self._changed.notify_all()
                if has_changed:
                    self.worker._woken.set()
            self.worker._stopping.wait(FOLLOW_SECONDS)

    def _desired(self) -> int:
        """Return this worker's share of the desired workers of the types' queues.

        It is what each worker of a queue takes, if all take the same. Rounded up, so that together
        they take no less than is desired.
        """
        client = self.worker.client
        names = self.handler.types
        queues = {client.request("GET", path("job-types", name))["queue"] for name in names}
        shares = 0
        for queue_name in queues:
            status = client.request("GET", path("queues", queue_name)).get("status")
            shares += (
                -(-status["desired_workers"] // max(1, status.get("workers", 1))) if status else 1
            )
        return shares

    def is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def join(self, timeout: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def running(self) -> list[_Attempt]:
        with self._changed:
            return list(self._attempts)

    def settled(self, attempt: _Attempt) -> None:
        with self._changed:
            self._attempts.discard(attempt)
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._lease_until_stopped()
        except BaseException as error:  # it ends the worker, and `run` raises it
            self.worker._fail(error)
        with self._changed:
            carried, self._carried = self._carried, []
        for attempt in carried:
            self.worker._outbox.add(attempt)
        with self._changed:
            while self._attempts:
                self._changed.wait(0.5)
        for _ in self._slots:
            self._work.put(None)

    def _lease_until_stopped(self) -> None:
        """Send one lease request after another, each until it is answered."""
        while (body := self._next_request()) is not None:
            began = time.monotonic()
            self.is_polling = True
            try:
                answer = self._send(body)
            finally:
                self.is_polling = False
            if answer is None:
                return
            for attempt, reported in zip(self._sent, answer["reports"], strict=False):
                refused = reported.get("error")
                problem = ProblemError(reported["status"], refused) if refused else None
                self.worker._answered(attempt, reported["status"], problem)
            self._sent = []
            for lease in answer["leases"]:
                self._begin(_Attempt(lease, self, self._lease_seconds_of(lease)))
            self._pause_until = 0.0
            if not answer["leases"] and time.monotonic() - began < MIN_POLL_SECONDS:
                self._pause_until = time.monotonic() + MIN_POLL_SECONDS
            if server_pause := answer.get("retry_after_seconds"):
                self._pause_until = time.monotonic() + min(server_pause, MAX_PAUSE_SECONDS)
            if answer.get("stop"):
                logger.info("the server stops this worker")
                self.worker.stop()

    def _lease_seconds_of(self, lease: Mapping[str, Any]) -> float:
        """Return how long a lease lasts without a heartbeat."""
        job = lease["job"]
        expires, started = parse_instant(lease["expires_at"]), parse_instant(job["started_at"])
        # Both are of the server's clock, so a wrong clock here does no harm.
        span = max(0.001, (expires - started).total_seconds())
        if self.worker._lease_seconds is not None:
            return min(span, self.worker._lease_seconds)
        if self._repeated_for == 0:
            self._spans[job["type"]] = span
            return span
        # A repeat renewed the lease, which may have begun with the first request.
        least = max(span - self._repeated_for, span / 4)
        return min(span, self._spans.get(job["type"], least))

    def _next_request(self) -> dict[str, Any] | None:
        """Wait for a free slot, and return the next request; None if the worker stops."""
        with self._changed:
            while not self.worker._stopping.is_set() and not self._may_lease():
                rest = self._pause_until - time.monotonic()
                self._changed.wait(rest if rest > 0 and self._free else None)
            if self.worker._stopping.is_set():
                return None
            self._sent = self._take_carried()
            return self._body(self._sent)

    def _send(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request until it is answered.

        Returns None if the worker stops and the server has not answered for a minute. Raises the
        error of a request that is wrong.
        """
        stopping, failures, since = self.worker._stopping, 0, time.monotonic()
        while True:
            if failures and stopping.is_set():
                # It gets the leases of the request that it repeats, and no others.
                body["max"] = 0
                body.pop("min", None)
            wait = body["wait_seconds"] if body["max"] else 0.0
            try:
                content = dumps(body)
                answer = self.worker.client._http.send(
                    "POST", "/v1/leases", body=content, wait=wait
                )
                found: dict[str, Any] = answer.json()
                self._repeated_for = time.monotonic() - since if failures else 0.0
                return found
            except (Unreachable, ProblemError) as error:
                status = error.status if isinstance(error, ProblemError) else 0
                if self._sent and status in (400, 413):
                    # One of the reports is wrong: each gets an answer of its own.
                    for attempt in self._sent:
                        self.worker._outbox.add(attempt, alone=True)
                    self._sent = []
                    body.pop("reports")
                    continue
                is_hopeless = stopping.is_set() and time.monotonic() - since > MAX_REPORT_SECONDS
                if is_hopeless or not (error.retryable or status == 500):
                    for attempt in self._sent:
                        self.worker._outbox.add(attempt)
                    if is_hopeless:
                        return None
                    raise
                failures += 1
                pause = backoff(failures, MIN_POLL_SECONDS)
                if error.retry_after:
                    pause += min(error.retry_after, MAX_PAUSE_SECONDS)
                level = logging.INFO if failures < 3 else logging.WARNING
                logger.log(level, "no lease: %s; again in %.1f s", error, pause)
            if stopping.is_set():
                time.sleep(min(pause, 1.0))
            else:
                stopping.wait(pause)

    def _may_lease(self) -> bool:
        # A finished job ends a pause: its report goes at once.
        is_paused = self._pause_until > time.monotonic() and not self._carried
        return self._free > 0 and not is_paused

    def _take_carried(self) -> list[_Attempt]:
        """Take the reports for a lease request. It may wait long, so the rest goes apart."""
        carried, self._carried = self._carried, []
        taken: list[_Attempt] = []
        size = 0
        for attempt in carried:
            size += attempt.report_bytes
            if len(taken) < MAX_REPORTS and size <= MAX_REPORT_BYTES:
                taken.append(attempt)
            else:
                self.worker._outbox.add(attempt)
        return taken

    def _body(self, sent: list[_Attempt]) -> dict[str, Any]:
        worker = self.worker
        body: dict[str, Any] = {
            "types": list(self.handler.types),
            "max": self._free,
            "wait_seconds": worker._wait,
            "max_pause_seconds": worker._max_pause,
            "worker": worker.name,
            "request_id": uuid.uuid4().hex,
        }
        if (least := min(self._least, self._free)) > 1:
            body["min"] = least
        if worker._lease_seconds is not None:
            body["lease_seconds"] = worker._lease_seconds
        if sent:
            body["reports"] = [attempt.carried() for attempt in sent]
        return body

    def _begin(self, attempt: _Attempt) -> None:
        with self._changed:
            self._attempts.add(attempt)
            self._running += 1
            if len(self._slots) < self._running:
                name = f"tidegate-{self.handler.types[0]}-{len(self._slots)}"
                slot = threading.Thread(target=self._run_slot, name=name, daemon=True)
                self._slots.append(slot)
                slot.start()
        self.worker._beats.add(attempt)
        self._work.put(attempt)

    def _run_slot(self) -> None:
        while (attempt := self._work.get()) is not None:
            if self.worker._stopping.is_set():
                message = "its worker stopped before it began"
                report: Report | None = {"status": "released", "message": message}
            else:
                report = self.handler.report(attempt.job)
                self._log(attempt, report)
            self._finished(attempt, report)

    def _finished(self, attempt: _Attempt, report: Report | None) -> None:
        if report is None:
            attempt.is_finished = attempt.is_reported = True
            self.worker._beats.remove(attempt)
        else:
            # A heartbeat that came after the report would be refused, and its lines lost.
            is_free = attempt.beating.acquire(timeout=MAX_BEAT_WAIT)
            attempt.is_finished = True
            attempt.finish(report)
            if is_free:
                attempt.beating.release()
        with self._changed:
            self._running -= 1
            if report is None:
                self._attempts.discard(attempt)
            is_carried = (
                report is not None and not self.is_polling and not self.worker._stopping.is_set()
            )
            if is_carried:
                self._carried.append(attempt)
            self._changed.notify_all()
        if report is not None and not is_carried:
            self.worker._outbox.add(attempt)

    def _log(self, attempt: _Attempt, report: Report | None) -> None:
        job = attempt.job
        outcome = report["status"] if report is not None else "lost"
        why = f": {report['message']}" if report is not None and "message" in report else ""
        level = logging.WARNING if outcome in ("failed", "lost") else logging.INFO
        logger.log(level, "%s %s attempt %s %s%s", job.type, job.id, job.attempt, outcome, why)


class _Outbox:
    """Reports that no lease request carries: they go together in requests of their own."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._changed = threading.Condition()
        self._pending: list[tuple[_Attempt, bool]] = []
        self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="tidegate-reports", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def add(self, attempt: _Attempt, *, alone: bool = False) -> None:
        with self._changed:
            self._pending.append((attempt, alone))
            self._changed.notify_all()

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                while not self._pending and not self._stopped:
                    self._changed.wait()
                if not self._pending:
                    return
                batch = self._take()
            try:
                failures = 0 if self._send(batch) else failures + 1
            except Exception:
                logger.exception("a report failed")
                failures += 1
            if failures:
                time.sleep(backoff(failures))

    def _take(self) -> list[_Attempt]:
        first, alone = self._pending.pop(0)
        batch, size = [first], first.report_bytes
        while not alone and self._pending and not self._pending[0][1] and len(batch) < MAX_REPORTS:
            size += self._pending[0][0].report_bytes
            if size > MAX_REPORT_BYTES:
                break
            batch.append(self._pending.pop(0)[0])
        return batch

    def _send(self, batch: list[_Attempt]) -> bool:
        """Send reports; return False if the server is to be left alone for a while."""
        worker, http = self._worker, self._worker.client._http
        try:
            if len(batch) == 1:
                attempt = batch[0]
                headers = {"authorization": f"Bearer {attempt.token}"}
                http.send("POST", attempt.path, body=dumps(attempt.report), headers=headers)
                return worker._answered(attempt, 200, None)
            body = {"max": 0, "worker": worker.name}
            reports = [attempt.carried() for attempt in batch]
            answer = http.send("POST", "/v1/leases", body=dumps({**body, "reports": reports}))
            answers = answer.json()["reports"]
            if len(answers) != len(batch):
                raise UnexpectedAnswer("it lacks answers to reports")
            are_taken = True
            for attempt, reported in zip(batch, answers, strict=True):
                refused = reported.get("error")
                problem = ProblemError(reported["status"], refused) if refused else None
                are_taken &= worker._answered(attempt, reported["status"], problem)
            return are_taken
        except ProblemError as error:
            if len(batch) > 1 and error.status in (400, 413):
                for attempt in batch:
                    self.add(attempt, alone=True)
                return True
            return self._refused(batch, error)
        except (TidegateError, LookupError, TypeError) as error:
            # No answer came, or none that can be read.
            return self._refused(batch, ProblemError(503, {"detail": str(error)}))

    def _refused(self, batch: list[_Attempt], error: ProblemError) -> bool:
        are_taken = True
        for attempt in batch:
            are_taken &= self._worker._answered(attempt, error.status, error)
        return are_taken


class _Heartbeats:
    """Heartbeats of the running attempts, at a third of their leases, or when there is news.

    A thread of its own aborts an attempt when its lease is over by this worker's record. So no
    request that hangs, and no other attempt, can delay that. A heartbeat that waits for its answer
    takes a thread, and the others have another one.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._ending = threading.Condition(lock)
        self._attempts: dict[int, _Attempt] = {}
        """Those that are not settled, by their numbers."""
        self._due: list[tuple[float, int]] = []
        """When heartbeats of numbers are due; those of settled attempts are left over."""
        self._next_end = math.inf
        """When the thread that watches looks at the leases again."""
        self._number = 0
        self._idle = 0
        self._stopped = False
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        with self._changed:
            self._add_thread()
            watch = threading.Thread(target=self._watch, name="tidegate-leases", daemon=True)
            self._threads.append(watch)
            watch.start()

    def _add_thread(self) -> None:
        """Start a thread that sends. The lock is held."""
        name = f"tidegate-beat-{len(self._threads)}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._idle += 1
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._ending.notify_all()
            threads = list(self._threads)
        # Nothing runs any more. One whose request hangs ends by itself.
        until = time.monotonic() + MAX_BEAT_WAIT
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def add(self, attempt: _Attempt) -> None:
        with self._changed:
            self._number += 1
            attempt.number = self._number
            self._attempts[attempt.number] = attempt
            if attempt.lost_at < self._next_end:
                self._ending.notify()
        attempt.job._on_change = lambda: self._hasten(attempt)
        self._push(attempt)

    def remove(self, attempt: _Attempt) -> None:
        with self._changed:
            self._attempts.pop(attempt.number, None)

    def _push(self, attempt: _Attempt) -> None:
        with self._changed:
            heapq.heappush(self._due, (attempt.next_beat, attempt.number))
            self._changed.notify()

    def _hasten(self, attempt: _Attempt) -> None:
        """Send a heartbeat within a second: the attempt has something to show."""
        due = attempt.last_beat + FLUSH_SECONDS
        with self._changed:
            if due < attempt.next_beat:
                attempt.next_beat = due
                heapq.heappush(self._due, (due, attempt.number))
                self._changed.notify()

    def _watch(self) -> None:
        """Abort the attempts whose lease is over."""
        while True:
            with self._changed:
                now = time.monotonic()
                running = [
                    attempt
                    for attempt in self._attempts.values()
                    if not (attempt.is_finished or attempt.is_lost)
                ]
                lost = [attempt for attempt in running if attempt.lost_at <= now]
                for attempt in lost:
                    attempt.is_lost = True
                if not lost:
                    if self._stopped:
                        return
                    # A heartbeat moves an end on, so there may be nothing to abort then.
                    self._next_end = min((one.lost_at for one in running), default=math.inf)
                    self._ending.wait(self._next_end - now if running else None)
            for attempt in lost:
                # Another worker may have the job.
                attempt.job._abort("lease_lost")

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and (not self._due or self._due[0][0] > time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._stopped:
                    return
                due, number = heapq.heappop(self._due)
                attempt = self._attempts.get(number)
                # The entry may have been overtaken by an earlier one.
                if attempt is None or attempt.is_lost or due != attempt.next_beat:
                    continue
                self._idle -= 1
                if self._idle == 0 and len(self._threads) <= MAX_BEAT_THREADS:
                    self._add_thread()
            try:
                with attempt.beating:
                    again = self._beat(attempt)
            except Exception:
                logger.exception("a heartbeat failed")
                again = True
            with self._changed:
                self._idle += 1
            if again and not (attempt.is_reported or attempt.is_lost):
                self._push(attempt)

    def _beat(self, attempt: _Attempt) -> bool:
        """Send a heartbeat, and return whether there is to be another."""
        job = attempt.job
        sent_at = time.monotonic()
        attempt.last_beat = sent_at
        attempt.next_beat = sent_at + attempt.lease_seconds / 3
        fields = {} if attempt.is_finished else job._take_changes()
        body = {"attempt": job.attempt, **fields}
        if self._worker._lease_seconds is not None:
            body["lease_seconds"] = self._worker._lease_seconds
        headers = {"authorization": f"Bearer {attempt.token}"}
        http = self._worker.client._http
        # Half of what is left, so that one that hangs leaves time for another.
        rest = attempt.lost_at - sent_at
        timeout = min(http.timeout, max(rest / 2, MIN_BEAT_SECONDS))
        if not attempt.is_finished:
            timeout = min(timeout, max(rest, 0.05))
        try:
            answer = http.send(
                "POST", f"{attempt.path}/heartbeat", body=dumps(body), headers=headers,
                timeout=timeout,
            ).json()  # fmt: skip
        except ProblemError as error:
            if error.status in OVER_STATUS and not error.retryable:
                # The report was recorded, or the attempt is over.
                if not attempt.is_finished:
                    job._abort("lease_lost")
                return False
            if not error.retryable:
                logger.warning("a heartbeat of %s was refused: %s", job.id, error)
                if error.status in (400, 413):
                    # What it showed is wrong, and the lease lasts.
                    return True
            return self._unanswered(attempt, fields)
        except TidegateError as error:
            logger.info("a heartbeat of %s has no answer: %s", job.id, error)
            return self._unanswered(attempt, fields)
        attempt.lost_at = sent_at + attempt.lease_seconds
        if answer["cancel"]:
            job._abort("cancelled")
        return True

    def _unanswered(self, attempt: _Attempt, fields: dict[str, Any]) -> bool:
        attempt.job._put_back(fields)
        now = time.monotonic()
        rest = attempt.lost_at - now
        is_over = attempt.is_finished or rest <= 0
        attempt.next_beat = now + (1.0 if is_over else min(1.0, max(rest / 2, 0.05)))
        return True
