"""The client: enqueue, read, wait for results, send events, and configure.

Requests that are safe to repeat are repeated: an enqueue carries an ``Idempotency-Key`` of its own,
so that a lost answer makes no second job.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from . import _context, stream
from ._http import Answer, RetryPolicy, Transport, dumps, path
from .codec import decode, encode, instant
from .errors import ProblemError, UnexpectedAnswer, WaitTimeout, problem

if TYPE_CHECKING:
    from . import types
    from .config import Config, Plan

T = TypeVar("T")
DEFAULT_URL = "http://127.0.0.1:8080"
# A batch within these bounds is sent without reading the server's.
SMALL_BATCH = 1000
SMALL_BATCH_BYTES = 1 << 20
# What a batch has in addition to its jobs.
BATCH_FRAME_BYTES = len(b'{"jobs":[]}')
# The longest wait of one request; a longer wait is several of them.
MAX_WAIT_SECONDS = 60.0


class JobType(Generic[T]):
    """A job type whose data is a ``data`` model: pydantic, a dataclass, or any JSON value.

    ::

        mail = JobType("mail", Mail)
        client.enqueue(mail, Mail(to="ann@example.com"))
    """

    def __init__(self, name: str, data: type[T] | None = None) -> None:
        self.name = name
        self.data = data

    def __repr__(self) -> str:
        return f"JobType({self.name!r})"

    def decode(self, value: Any) -> T:
        """Return the JSON ``value`` as this type's data."""
        return cast("T", decode(self.data, value))


class NewJob:
    """A job of a batch; the arguments are those of :meth:`Client.enqueue`."""

    def __init__(
        self,
        job_type: str | JobType[Any],
        data: Any = None,
        *,
        id: str | None = None,  # noqa: A002
        run_at: datetime | str | None = None,
        delay_seconds: float | None = None,
        expires_at: datetime | str | None = None,
        correlation_key: str | None = None,
        priority: int | None = None,
        weight: int | None = None,
        critical: bool | None = None,
        windows: Sequence[types.Window] | None = None,
        timeout_seconds: float | None = None,
        deadline_seconds: float | None = None,
        max_attempts: int | None = None,
        retry: types.Retry | None = None,
        unique: types.Unique | None = None,
        attributes: Mapping[str, str | int | float | bool] | None = None,
        keep_result: types.KeepResult | None = None,
        callback_url: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        body: dict[str, Any] = {
            "type": job_type if isinstance(job_type, str) else job_type.name,
            "data": encode(data),
            "id": id,
            "run_at": run_at if run_at is None else instant(run_at),
            "delay_seconds": delay_seconds,
            "expires_at": expires_at if expires_at is None else instant(expires_at),
            "correlation_key": correlation_key,
            "priority": priority,
            "weight": weight,
            "critical": critical,
            "windows": windows,
            "timeout_seconds": timeout_seconds,
            "deadline_seconds": deadline_seconds,
            "max_attempts": max_attempts,
            "retry": retry,
            "unique": unique,
            "attributes": attributes,
            "keep_result": keep_result,
            "callback_url": callback_url,
            "headers": headers,
        }
        self.body = {
            name: value for name, value in body.items() if value is not None or name == "data"
        }
        """The body of the request."""


class Job:
    """A job that was enqueued or read: its fields as they were then, and what may be done next."""

    def __init__(self, client: Client, raw: types.Job, status: int = 200) -> None:
        self._client = client
        self.raw = raw
        """Every field, as in the API."""
        self.is_new = status == 201
        """Whether the enqueue made it; False if it existed, by its id, key or ``unique``."""

    def __repr__(self) -> str:
        return f"<Job {self.type}/{self.id} {self.phase}>"

    @property
    def id(self) -> str:
        """Its id."""
        return self.raw["id"]

    @property
    def type(self) -> str:
        """Its type."""
        return self.raw["type"]

    @property
    def state(self) -> str:
        """``scheduled``, ``running``, ``succeeded``, ``failed``, ..., when it was read."""
        return self.raw["state"]

    @property
    def phase(self) -> str:
        """The state, with ``scheduled`` divided: ``scheduled``, ``ready``, ``retrying``."""
        return self.raw["phase"]

    def result(self, wait: float | None = None) -> Any:
        """Return its result; see :meth:`Client.result`."""
        return self._client.result(self.type, self.id, wait)

    def refresh(self) -> Job:
        """Return it as it is now."""
        return self._client.job(self.id, self.type)

    def cancel(self, *, force: bool = False) -> Job:
        """Cancel it; see :meth:`Client.cancel`."""
        return self._client.cancel(self.type, self.id, force=force)


class BatchItem(NamedTuple):
    """The outcome of one job of a batch: either ``job`` or ``error``."""

    job: Job | None
    error: ProblemError | None


class Client:
    """A client of one server. Threads may share it.

    ``url`` and ``token`` default to ``TIDEGATE_URL`` and ``TIDEGATE_TOKEN``. ``timeout`` is in
    seconds, for the answer to a request, in addition to the time that the request itself waits.
    ``traceparent`` returns the W3C trace context of each request; by default it is that of the job
    that runs in this thread or task.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retries: RetryPolicy | None = None,
        traceparent: Callable[[], str | None] | None = None,
    ) -> None:
        self._http = Transport(
            url or os.environ.get("TIDEGATE_URL") or DEFAULT_URL,
            token if token is not None else os.environ.get("TIDEGATE_TOKEN"),
            timeout,
            retries or RetryPolicy(),
            traceparent or _context.traceparent.get,
        )
        self._limits: types.Limits | None = None

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._http.url

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        repeatable: bool | None = None,
    ) -> Any:
        """Send any request of the API, and return the answer's JSON.

        ``path`` begins with ``/v1/``. GET, PUT and DELETE are repeated; a POST only if it has an
        ``Idempotency-Key`` or is ``repeatable``.
        """
        return self._send(method, path, body, query, headers, wait, repeatable).json()

    def _send(
        self,
        method: str,
        target: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        wait: float = 0.0,
        repeatable: bool | None = None,
    ) -> Answer:
        if repeatable is None:
            names = {name.lower() for name in headers or ()}
            repeatable = method in ("GET", "PUT", "DELETE") or "idempotency-key" in names
        content = None if body is None else dumps(body)
        return self._http.request(
            method, target, query=query, body=content, headers=headers, wait=wait,
            repeatable=repeatable,
        )  # fmt: skip

    # Jobs

    def enqueue(
        self,
        job_type: str | JobType[T],
        data: T | Any = None,
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Job:
        """Enqueue a job; the options are those of :class:`NewJob`.

        The call is repeated safely: by ``id`` if it is given, else by ``idempotency_key`` (1 to 255
        characters), else by a random key. ``Job.is_new`` is False if the job existed.

        Raises :class:`~tidegate.errors.InvalidRequest` for a wrong option,
        :class:`~tidegate.errors.NotFound` for an unknown type, and
        :class:`~tidegate.errors.Conflict` if another request has used the id or the key.
        """
        body = NewJob(job_type, data, **options).body
        headers = None
        if "id" not in body or idempotency_key is not None:
            headers = {"idempotency-key": idempotency_key or uuid.uuid4().hex}
        answer = self._http.request("POST", "/v1/jobs", body=dumps(body), headers=headers)
        return Job(self, answer.json(), answer.status)

    def enqueue_many(
        self, jobs: Iterable[NewJob], *, idempotency_key: str | None = None
    ) -> list[BatchItem]:
        """Enqueue jobs, and return one outcome per job, in order.

        A request has as many of them as the server takes. A refused job does not affect the others.
        With ``idempotency_key`` the call can be repeated with the same list.
        """
        key = idempotency_key or uuid.uuid4().hex
        items: list[BatchItem] = []
        for number, part in enumerate(self._batches([dumps(job.body) for job in jobs])):
            answer = self._http.request(
                "POST",
                "/v1/jobs/batch",
                body=b'{"jobs":[' + b",".join(part) + b"]}",
                headers={"idempotency-key": f"{key}.{number}"},
            )
            for result in answer.json()["results"]:
                status = result["status"]
                raw, refused = result.get("job"), result.get("error")
                job = Job(self, raw, status) if raw is not None else None
                items.append(BatchItem(job, problem(status, refused) if refused else None))
        return items

    def _batches(self, bodies: list[bytes]) -> Iterator[list[bytes]]:
        """Yield the bodies in parts that each fit into one request."""
        most, most_bytes = SMALL_BATCH, SMALL_BATCH_BYTES
        if len(bodies) > most or sum(map(len, bodies)) > most_bytes:
            limits = self.limits()
            most, most_bytes = limits["batch_jobs"], limits["batch_request_bytes"]
        part: list[bytes] = []
        size = BATCH_FRAME_BYTES
        for body in bodies:
            if part and (len(part) == most or size + len(body) + 1 > most_bytes):
                yield part
                part, size = [], BATCH_FRAME_BYTES
            part.append(body)
            size += len(body) + 1
        if part:
            yield part

    def limits(self) -> types.Limits:
        """Return what the server accepts in one request. It is read once."""
        if self._limits is None:
            self._limits = self.request("GET", "/v1/limits")
        return self._limits

    def job(self, job_id: str, job_type: str | None = None) -> Job:
        """Return a job by its id. Raises :class:`~tidegate.errors.NotFound` if there is none."""
        segments = ("jobs", job_id) if job_type is None else ("jobs", job_type, job_id)
        return Job(self, self.request("GET", path(*segments)))

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """Yield the jobs that the filters of ``GET /v1/jobs`` match, page by page.

        For example ``jobs(type="mail", state="failed")``.
        """
        for raw in self.pages("/v1/jobs", "jobs", **filters):
            yield Job(self, raw)

    def pages(self, path: str, items: str, **query: Any) -> Iterator[Any]:
        """Yield the ``items`` of every page of a list of the API."""
        while True:
            page = self.request("GET", path, query=query)
            yield from page[items]
            cursor = page.get("next_cursor")
            if not cursor:
                return
            query["cursor"] = cursor

    def result(self, job_type: str, job_id: str, wait: float | None = None) -> Any:
        """Return the result of a job, after at most ``wait`` seconds; None waits for its end.

        Raises :class:`~tidegate.errors.JobFailed` if it ended otherwise, and
        :class:`~tidegate.errors.WaitTimeout` if it did not end within the wait.
        """
        until = None if wait is None else time.monotonic() + wait
        target = path("jobs", job_type, job_id, "result")
        while True:
            rest = MAX_WAIT_SECONDS if until is None else max(0.0, until - time.monotonic())
            part = min(rest, MAX_WAIT_SECONDS)
            try:
                answer = self._send(
                    "GET", target, query={"wait": round(part, 3)} if part else None, wait=part
                )
            except WaitTimeout:
                if until is not None and time.monotonic() >= until:
                    raise
                continue
            state = answer.headers.get("tidegate-state")
            if state is None:
                raise UnexpectedAnswer("the answer has no header Tidegate-State")
            if state == "succeeded":
                return answer.json()
            detail = f"the job is {state}, and did not end within {wait} s"
            raise problem(408, {"code": "wait_timeout", "title": "Wait timeout", "detail": detail})

    def cancel(self, job_type: str, job_id: str, *, force: bool = False) -> Job:
        """Cancel a job. A running one ends when its worker reports; ``force`` ends it at once."""
        query = {"force": True} if force else None
        return Job(self, self.request("DELETE", path("jobs", job_type, job_id), query=query))

    def replay(self, job_type: str, job_id: str, *, again: bool = False, **changes: Any) -> Job:
        """Run an ended job again, as a new job. A second call returns the same new job.

        ``again`` makes another one; ``data``, ``priority``, ... replace those of the old job.
        """
        body = {**changes, **({"again": True} if again else {})}
        headers = {"idempotency-key": uuid.uuid4().hex} if again else None
        target = path("jobs", job_type, job_id, "replay")
        answer = self._send("POST", target, encode(body), headers=headers, repeatable=True)
        return Job(self, answer.json(), answer.status)

    def change(self, job_type: str, job_id: str, **changes: Any) -> Job:
        """Change a scheduled job: ``run_at``, ``priority``, ``data``, ``expires_at``, ``windows``.

        None sets what an enqueue without the field has.
        """
        target = path("jobs", job_type, job_id)
        return Job(self, self.request("PATCH", target, encode(changes), repeatable=True))

    def explain(self, job_type: str, job_id: str) -> Any:
        """Return why a job waits, as in ``GET /v1/jobs/{type}/{id}/explain``."""
        return self.request("GET", path("jobs", job_type, job_id, "explain"))

    def log(self, job_type: str, job_id: str, attempt: int | None = None) -> list[types.LogLine]:
        """Return the log lines of a job that are kept, oldest first."""
        lines: list[types.LogLine] = []
        query: dict[str, Any] = {"attempt": attempt}
        while True:
            page = self.request("GET", path("jobs", job_type, job_id, "log"), query=query)
            lines.extend(page["lines"])
            # A page of a job that has not ended always names a next one.
            if not page["lines"] or not page.get("next_cursor"):
                return lines
            query["cursor"] = page["next_cursor"]

    # Events

    def send_event(
        self,
        event_type: str,
        source: str,
        data: Any = None,
        *,
        id: str | None = None,  # noqa: A002
        subject: str | None = None,
        time: datetime | str | None = None,
        extensions: Mapping[str, str | int | bool] | None = None,
    ) -> types.Ingested:
        """Send a CloudEvent, and return what each trigger did about it.

        Without ``id`` the event gets a random one. Repeats of this client send the same id, so that
        a lost answer makes no second job.
        """
        event: dict[str, Any] = {
            **(extensions or {}),
            "specversion": "1.0",
            "id": id or uuid.uuid4().hex,
            "source": source,
            "type": event_type,
        }
        if subject is not None:
            event["subject"] = subject
        if time is not None:
            event["time"] = instant(time)
        if data is not None:
            event["datacontenttype"] = "application/json"
            event["data"] = encode(data)
        headers = {"content-type": "application/cloudevents+json"}
        answer = self.request("POST", "/v1/events", event, headers=headers, repeatable=True)
        return cast("types.Ingested", answer)

    def stream(
        self,
        *,
        queue: str | None = None,
        job_type: str | None = None,
        ids: Sequence[str] = (),
        after: str | None = None,
    ) -> stream.Stream:
        """Return the changes of jobs, queues, types and workers as they are committed.

        The iterator connects again after a break, and goes on behind the last event.
        """
        query: dict[str, Any] = {"queue": queue, "type": job_type}
        if ids:
            query["id"] = ",".join(ids)
        return stream.Stream(self._http, query, after)

    # Configuration

    def plan(self, config: Config, *, secrets: bool = True) -> Plan:
        """Compare a configuration with the server, and change nothing.

        Secrets cannot be read, so the server compares those of a job type that declares or has one.
        That needs the scope ``admin``; without ``secrets`` they are not compared, and ``read`` is
        enough.
        """
        from .config import make_plan

        return make_plan(self, config, secrets=secrets)

    def apply(self, config: Config, *, secrets: bool = True) -> Plan:
        """Create or change what a configuration declares, and return what was done.

        What it does not declare stays. Print ``plan`` first to see the changes.
        """
        plan = self.plan(config, secrets=secrets)
        plan.apply()
        return plan


class AsyncClient:
    """The same client for ``asyncio``: its calls run in threads, and its methods are awaited."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.sync = Client(*args, **options)
        """The client that does the work."""

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sync.close()

    async def enqueue(
        self,
        job_type: str | JobType[T],
        data: T | Any = None,
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> Job:
        """As :meth:`Client.enqueue`."""
        call = partial(
            self.sync.enqueue, job_type, data, idempotency_key=idempotency_key, **options
        )
        return await asyncio.to_thread(call)

    async def enqueue_many(
        self, jobs: Iterable[NewJob], *, idempotency_key: str | None = None
    ) -> list[BatchItem]:
        """As :meth:`Client.enqueue_many`."""
        call = partial(self.sync.enqueue_many, list(jobs), idempotency_key=idempotency_key)
        return await asyncio.to_thread(call)

    async def limits(self) -> types.Limits:
        """As :meth:`Client.limits`."""
        return await asyncio.to_thread(self.sync.limits)

    async def job(self, job_id: str, job_type: str | None = None) -> Job:
        """As :meth:`Client.job`."""
        return await asyncio.to_thread(self.sync.job, job_id, job_type)

    async def result(self, job_type: str, job_id: str, wait: float | None = None) -> Any:
        """As :meth:`Client.result`."""
        return await asyncio.to_thread(self.sync.result, job_type, job_id, wait)

    async def cancel(self, job_type: str, job_id: str, *, force: bool = False) -> Job:
        """As :meth:`Client.cancel`."""
        return await asyncio.to_thread(partial(self.sync.cancel, job_type, job_id, force=force))

    async def send_event(
        self, event_type: str, source: str, data: Any = None, **attributes: Any
    ) -> types.Ingested:
        """As :meth:`Client.send_event`."""
        call = partial(self.sync.send_event, event_type, source, data, **attributes)
        return await asyncio.to_thread(call)

    async def request(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        """As :meth:`Client.request`."""
        return await asyncio.to_thread(partial(self.sync.request, method, path, body, **options))
