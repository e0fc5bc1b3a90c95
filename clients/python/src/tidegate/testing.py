"""A test kit on ``tidegate dev``: a throw-away server whose clock a test freezes and moves.

::

    with DevServer() as server:
        server.freeze()
        server.client.apply(app.worker.config)
        app.remind("ann", in_days=7)                # enqueues
        server.assert_enqueued("reminder", data={"to": "ann"})
        server.advance(days=7)
        assert [run.status for run in server.drain(app.worker)] == ["succeeded"]

The program ``tidegate`` is that of ``TIDEGATE_PROGRAM``, or is found in ``PATH``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from ._handler import Handler
from ._http import dumps
from .client import Client, Job
from .codec import encode, instant, parse_instant
from .config import Config
from .context import JobContext
from .errors import TidegateError
from .worker import Worker

START_SECONDS = 30.0
MAX_DRAINED = 10_000


class Run(NamedTuple):
    """One attempt that :meth:`DevServer.drain` ran."""

    type: str
    id: str
    attempt: int
    data: Any
    status: str
    """``succeeded``, ``failed``, ``released`` or ``snoozed``."""
    result: Any
    message: str | None


class DevServer:
    """A server for one test run, without tokens, on this machine alone.

    ``program`` is the path of ``tidegate``. ``environment`` adds settings (``TIDEGATE_...``).
    """

    def __init__(
        self, program: str | None = None, *, environment: dict[str, str] | None = None
    ) -> None:
        self._program = program or os.environ.get("TIDEGATE_PROGRAM") or "tidegate"
        self._environment = environment or {}
        self._process: subprocess.Popen[str] | None = None
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """A client of the server."""
        if self._client is None:
            raise TidegateError("the server is not started")
        return self._client

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self.client.url

    def start(self) -> DevServer:
        """Start the server on a free port. Raises if it does not start within 30 seconds."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
        self._process = subprocess.Popen(
            [self._program, "dev", "--listen", "127.0.0.1:0"],
            stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
            env={**inherited, **self._environment},
        )  # fmt: skip
        process, lines = self._process, []
        found = threading.Event()
        urls: list[str] = []

        def read() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                lines.append(line)
                del lines[:-50]
                if not urls and (address := re.search(r" on (http://\S+)", line)):
                    urls.append(address[1])
                    found.set()
            found.set()

        threading.Thread(target=read, daemon=True).start()
        if not found.wait(START_SECONDS) or not urls:
            self.stop()
            raise TidegateError("the server did not start: " + "".join(lines).strip())
        self._client = Client(urls[0], token="")
        return self

    def stop(self) -> None:
        """End the server and remove its data."""
        if self._client is not None:
            self._client.close()
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            if self._process.stderr is not None:
                self._process.stderr.close()
            self._process = None

    def __enter__(self) -> DevServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # Time

    def now(self) -> datetime:
        """Return what the server's clock shows."""
        return parse_instant(self.client.request("GET", "/v1/dev/clock")["now"])

    def time(self) -> float:
        """Return it in seconds since the Unix epoch: the ``clock`` of :class:`tidegate.Push`."""
        return self.now().timestamp()

    def freeze(self) -> datetime:
        """Stop the clock."""
        return self._clock({"freeze": True})

    def unfreeze(self) -> datetime:
        """Let the clock run on from what it shows."""
        return self._clock({"freeze": False})

    def advance(self, seconds: float = 0.0, **span: float) -> datetime:
        """Move the clock forward: ``advance(90)``, ``advance(days=7)``, as for ``timedelta``.

        What is due then happens at once. Over several due times, move it step by step.
        """
        total = timedelta(seconds=seconds, **span).total_seconds()
        return self._clock({"advance_seconds": total})

    def set_time(self, now: datetime | str) -> datetime:
        """Move the clock forward to an instant."""
        return self._clock({"set": instant(now)})

    def _clock(self, change: dict[str, Any]) -> datetime:
        answer = self.client.request("POST", "/v1/dev/clock", change)
        return parse_instant(answer["now"])

    # Jobs

    def apply(self, *sources: Config | Worker) -> None:
        """Apply configurations, and those of workers; see :meth:`tidegate.Worker.apply`."""
        for source in sources:
            if isinstance(source, Worker):
                source.apply(self.client)
            else:
                self.client.apply(source)

    def jobs(self, job_type: str, **filters: Any) -> list[Job]:
        """Return the jobs of a type, oldest first; ``state="failed"`` and other filters select."""
        return list(self.client.jobs(type=job_type, **filters))[::-1]

    def assert_enqueued(
        self, job_type: str, data: Any = None, *, count: int | None = None, **fields: Any
    ) -> list[Job]:
        """Assert that jobs were enqueued, and return those that match, oldest first.

        ``data`` matches if its fields are in the job's data; other fields match those of the job,
        such as ``priority=1``. At least one job must match, or exactly ``count``.
        """
        every = [self.client.job(job.id) for job in self.jobs(job_type)]
        wanted = encode({**fields, **({} if data is None else {"data": data})})
        found = [job for job in every if _contains(job.raw, wanted)]
        if len(found) != count if count is not None else not found:
            shown = (
                "\n".join(f"  {job!r} {job.raw.get('data')!r:.200}" for job in every) or "  none"
            )
            many = "at least one" if count is None else str(count)
            raise AssertionError(
                f"{len(found)} jobs of type {job_type} match {wanted!r}, not {many}; "
                f"there are\n{shown}"
            )
        return found

    def drain(self, worker: Worker, *, types: Sequence[str] | None = None) -> list[Run]:
        """Run the due jobs of a worker's handlers in this thread, until none can start.

        A job that a handler enqueues is run, too, if it is due; a retry that is due later is not.
        Returns the attempts in the order in which they ran. A handler's exception is part of its
        attempt, as in production.
        """
        runs: list[Run] = []
        names = list(types or worker.types)
        while len(runs) < MAX_DRAINED:
            wait = 0.0 if not runs else 0.05
            leases = self._lease(names, wait)
            if not leases and self._has_ready(names):
                # A limit may be about to be freed. If not, it holds what is left.
                leases = self._lease(names, 1.0)
            if not leases:
                return runs
            for lease in leases:
                runs.append(self._run(worker, lease))
        raise TidegateError(f"more than {MAX_DRAINED} attempts: a handler enqueues its own type")

    def _lease(self, names: list[str], wait: float) -> list[Any]:
        body = {"types": names, "max": 1, "wait_seconds": wait, "worker": "drain"}
        leases: list[Any] = self.client.request("POST", "/v1/leases", body, wait=wait)["leases"]
        return leases

    def _has_ready(self, names: list[str]) -> bool:
        return any(
            self.client.request(
                "GET", "/v1/jobs", query={"type": name, "phase": "ready", "limit": 1}
            )["jobs"]
            for name in names
        )

    def _run(self, worker: Worker, lease: Any) -> Run:
        raw = lease["job"]
        handler = worker.handler(raw["type"])
        if handler is None:
            raise TidegateError(f"the worker has no handler for the type {raw['type']}")
        job: JobContext[Any] = JobContext(raw, lease["attempt"], raw.get("data"))
        report = handler.report(job) or {"status": "failed", "message": "the lease was lost"}
        rest = job._take_changes()
        rest.pop("progress", None)
        rest.pop("note", None)
        if report["status"] == "succeeded":
            rest.pop("checkpoint", None)
        body = {**report, **rest, "attempt": lease["attempt"]}
        headers = {"authorization": f"Bearer {lease['token']}"}
        target = f"/v1/jobs/{raw['type']}/{raw['id']}"
        self.client.request("POST", target, body, headers=headers, repeatable=True)
        return Run(
            raw["type"], raw["id"], lease["attempt"], raw.get("data"), report["status"],
            report.get("result"), report.get("message"),
        )  # fmt: skip


def run_in_place(handler: Any, data: Any = None, **job: Any) -> Any:
    """Call a handler without a server, as a worker would, and return its result.

    Data and result are encoded and decoded as on their way through the server, and requests of this
    package within the handler carry the job's trace context. ``job`` are fields of the job, such as
    ``attempt=2``, ``headers={...}`` or ``checkpoint={"page": 3}``. An exception of the handler is
    raised.
    """
    raw = {"id": "test", "type": "test", "max_attempts": 3, **job, "data": encode(data)}
    raw = json.loads(dumps(raw))
    context: JobContext[Any] = JobContext(raw, raw.get("attempt", 1), raw["data"])
    return json.loads(dumps(encode(Handler((raw["type"],), handler).call(context))))


def wait_until(condition: Any, seconds: float = 10.0) -> Any:
    """Call ``condition`` until it returns a true value, and return that.

    Raises ``AssertionError`` after ``seconds`` of real time.
    """
    until = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"{condition} was not true within {seconds} s")
        time.sleep(0.02)
    return value


def _contains(actual: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return isinstance(actual, dict) and all(
            name in actual and _contains(actual[name], value) for name, value in wanted.items()
        )
    return bool(actual == wanted)
