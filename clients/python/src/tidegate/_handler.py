"""Handlers: how one is called, and what its return or exception means for the attempt."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import traceback
import typing
from collections.abc import Callable
from typing import Any

from . import _context
from ._http import dumps
from .codec import decode, encode, instant
from .context import MAX_DETAILS_BYTES, JobContext, cut
from .errors import JobAborted, PermanentError, Release, Snooze

Report = dict[str, Any]


class Later:
    """What the handler of a push returns when the result comes later: the answer is 202.

    Keep ``job.callback``; its ``succeed``, ``fail``, ... report the result.
    """


class Handler:
    """A function that runs the jobs of some types.

    It is called with the data, and with the :class:`JobContext` if it takes two parameters, or if
    its only one is annotated as ``JobContext``. The annotation of the data's parameter is the type
    that the data is read as. A coroutine function runs in one event loop of the process.
    """

    def __init__(self, types: tuple[str, ...], function: Callable[..., Any]) -> None:
        self.types = types
        self.function = function
        self.is_async = inspect.iscoroutinefunction(function)
        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            and parameter.default is parameter.empty
        ]
        if len(parameters) > 2:
            raise TypeError("a handler takes the data, the job, or both")
        try:
            hints = typing.get_type_hints(function)
        except NameError:
            # A name that exists for type checkers only: the data stays as it comes.
            hints = {}
        kinds = [hints.get(parameter.name) for parameter in parameters]
        is_context = [_is_context(kind) for kind in kinds]
        self.takes_data = len(parameters) == 2 or (len(parameters) == 1 and not is_context[0])
        self.takes_job = len(parameters) == 2 or (len(parameters) == 1 and is_context[0])
        self.data_type: Any = kinds[0] if self.takes_data else None
        if self.takes_job and not self.takes_data:
            inner = typing.get_args(kinds[0])
            self.data_type = (
                inner[0] if inner and not isinstance(inner[0], typing.TypeVar) else None
            )

    def report(self, job: JobContext[Any], later: list[bool] | None = None) -> Report | None:
        """Run the handler, and return the report without the names of job and attempt.

        None if the lease was lost: another attempt has the job, so the outcome is dropped. None
        also if the handler of a push returned ``Later``, which adds True to ``later``.
        """
        try:
            job.data = decode(self.data_type, job.data)
        except Exception as error:
            # The same data is wrong in every attempt.
            message = f"the data cannot be read: {error}"
            return {**_failure(message, _details(error)), "retryable": False}
        token = _context.traceparent.set(job.traceparent)
        try:
            result = self._call(job)
        except BaseException as error:
            if not isinstance(error, (Exception, asyncio.CancelledError, SystemExit)):
                raise
            return report_of(error, job)
        finally:
            _context.traceparent.reset(token)
        if job.abort_reason == "lease_lost":
            return None
        if later is not None and isinstance(result, Later):
            later.append(True)
            return None
        try:
            result = encode(result)
            dumps(result)
        except (TypeError, ValueError) as error:
            message = f"the result is not a JSON value: {error}"
            return {**_failure(message, _details(error)), "retryable": False}
        return {"status": "succeeded", "result": result}

    def call(self, job: JobContext[Any]) -> Any:
        """Read the data, call the function with the job's trace context, and return its result."""
        job.data = decode(self.data_type, job.data)
        token = _context.traceparent.set(job.traceparent)
        try:
            return self._call(job)
        finally:
            _context.traceparent.reset(token)

    def _call(self, job: JobContext[Any]) -> Any:
        arguments = ([job.data] if self.takes_data else []) + ([job] if self.takes_job else [])
        if not self.is_async:
            return self.function(*arguments)
        return _run_async(self.function(*arguments), job)


def report_of(error: BaseException, job: JobContext[Any]) -> Report | None:
    """Return the report of an attempt whose handler raised ``error``."""
    if job.abort_reason == "lease_lost":
        return None
    if isinstance(error, Snooze):
        return {"status": "snoozed", "message": cut(str(error)), **snoozed_until(error)}
    if isinstance(error, Release):
        return {"status": "released", "message": cut(str(error))}
    if isinstance(error, (JobAborted, asyncio.CancelledError)) and job.abort_reason is not None:
        return _failure(
            "cancelled" if job.abort_reason == "cancelled" else "its worker stopped before it ended"
        )
    if isinstance(error, PermanentError):
        details = encode(error.details) if error.details is not None else _details(error)
        return {**_failure(str(error), details), "retryable": False}
    name = type(error).__name__
    return _failure(f"{name}: {error}" if str(error) else name, _details(error))


def snoozed_until(error: Snooze) -> dict[str, Any]:
    """Return the field of a report that says when the job may start again."""
    if error.seconds is not None:
        return {"delay_seconds": error.seconds}
    return {"run_at": instant(error.until)}


def _failure(message: str, details: Any = None) -> Report:
    report: Report = {"status": "failed", "message": cut(message)}
    if details is not None:
        if len(dumps(details)) > MAX_DETAILS_BYTES:
            details = {"cut": cut(dumps(details).decode(), MAX_DETAILS_BYTES // 4)}
        report["error"] = details
    return report


def _details(error: BaseException) -> dict[str, Any]:
    """Return the class and the stack trace, of a long one the end."""
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    details = {"type": f"{type(error).__module__}.{type(error).__qualname__}", "trace": trace}
    while len(dumps(details)) > MAX_DETAILS_BYTES:
        details["trace"] = details["trace"][len(details["trace"]) // 4 :]
    return details


def _is_context(kind: Any) -> bool:
    return (typing.get_origin(kind) or kind) is JobContext


_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def _event_loop() -> asyncio.AbstractEventLoop:
    global _loop  # noqa: PLW0603
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="tidegate-asyncio", daemon=True).start()
        return _loop


def _run_async(coroutine: Any, job: JobContext[Any]) -> Any:
    """Run a coroutine in the event loop, and cancel its task when the job is aborted."""
    trace = _context.traceparent.get()
    loop = _event_loop()
    tasks: list[asyncio.Task[Any]] = []

    async def with_trace() -> Any:
        task = asyncio.current_task()
        if task is not None:
            tasks.append(task)
        if job.aborted.is_set():
            coroutine.close()
            raise asyncio.CancelledError
        _context.traceparent.set(trace)
        return await coroutine

    def cancel() -> None:
        for task in tasks:
            task.cancel()

    def on_abort() -> None:
        loop.call_soon_threadsafe(cancel)

    job._on_abort = on_abort
    try:
        # The future of a cancelled task ends when the task has cleaned up.
        return asyncio.run_coroutine_threadsafe(with_trace(), loop).result()
    except concurrent.futures.CancelledError:
        raise asyncio.CancelledError from None
