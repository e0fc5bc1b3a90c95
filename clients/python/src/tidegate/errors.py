"""The errors of this package: one class for each reaction of a caller.

Every answer with a status from 400 on is a :class:`ProblemError`. Its ``code`` is the stable word
of the server's problem document, and its class depends on the code and the status::

    try:
        result = job.result(wait=10)
    except JobFailed as failed:
        print(failed.state, failed.reason)
    except WaitTimeout:
        ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# An answer with one of these may be another one a moment later.
_RETRYABLE_STATUS = frozenset((429, 502, 503, 504))
_RETRYABLE_CODES = frozenset(("body_timeout", "concurrent_update"))


class TidegateError(Exception):
    """The base class of every error of this package."""

    retry_after: float | None = None
    """The seconds of ``Retry-After``, if the answer had it."""

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later, as nothing is wrong with it.

        This client has repeated a request that is safe to repeat by then.
        """
        return False


class Unreachable(TidegateError):
    """No answer came: the request may or may not have been processed."""

    @property
    def retryable(self) -> bool:
        """True: the next one may get an answer."""
        return True


class UnexpectedAnswer(TidegateError):
    """The answer is not one of tidegate, or is larger than this client reads."""


class ProblemError(TidegateError):
    """The server refused a request."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status = status
        """The HTTP status."""
        self.document: Mapping[str, Any] = document
        """The whole problem document (RFC 9457)."""
        self.code: str = str(document.get("code", ""))
        """The stable word for programs, such as ``job_not_found``; empty if there was none."""
        self.detail: str = str(document.get("detail", ""))
        """What is wrong in this case, for people."""
        self.field: str | None = document.get("field")
        """The field, parameter or header at fault, such as ``constraints[2].rate.count``."""
        self.holder: str | None = document.get("holder")
        """The id of the job that the request conflicts with."""
        self.reasons: list[str] = list(document.get("reasons") or ())
        """Every fault, where there are several."""
        self.request_id: str | None = None
        """The server's id of the request (``X-Request-Id``), by which its log names the cause."""
        text = self.detail or str(document.get("title", "")) or f"HTTP {status}"
        where = f" [{self.field}]" if self.field else ""
        super().__init__(f"{text}{where} ({self.code or status})")

    @property
    def retryable(self) -> bool:
        """Whether the server is busy or not there (429, 502, 503, 504), or its code says retry."""
        return self.status in _RETRYABLE_STATUS or self.code in _RETRYABLE_CODES


class InvalidRequest(ProblemError):
    """The request is wrong (400, 405, 406, 413, 414, 415, 431): correct it."""


class Unauthorized(ProblemError):
    """The token is missing or not valid (401)."""


class Forbidden(ProblemError):
    """The token does not allow the request (403)."""


class NotFound(ProblemError):
    """There is no such job, type, queue, ... (404): see ``code``."""


class Conflict(ProblemError):
    """The state does not allow the request (409): see ``code`` and ``holder``."""


class PreconditionFailed(ProblemError):
    """The resource has changed since it was read (412)."""


class Unavailable(ProblemError):
    """The server is busy or is stopping (429, 503), also after the repeats of this client."""


class ServerFault(ProblemError):
    """The server failed (500): its log has the cause under ``request_id``."""


class WaitTimeout(ProblemError):
    """The job did not end within the wait."""


class JobFailed(ProblemError):
    """The job ended otherwise than succeeded, so it has no result."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        super().__init__(status, document)
        error: Mapping[str, Any] = document.get("error") or {}
        self.state: str = str(document.get("state", ""))
        """``failed``, ``expired``, ``cancelled`` or ``dropped``."""
        self.reason: str | None = error.get("reason")
        """The reason of the latest error, such as ``timeout``."""
        self.message: str | None = error.get("message")
        """The message of the latest error."""


_BY_CODE: dict[str, type[ProblemError]] = {"job_failed": JobFailed, "wait_timeout": WaitTimeout}
_BY_STATUS: dict[int, type[ProblemError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    429: Unavailable,
    503: Unavailable,
}


def problem(
    status: int,
    document: Mapping[str, Any],
    retry_after: float | None = None,
    request_id: str | None = None,
) -> ProblemError:
    """Return the error for a problem document."""
    kind = _BY_CODE.get(str(document.get("code", ""))) or _BY_STATUS.get(status)
    if kind is None:
        kind = ServerFault if status >= 500 else InvalidRequest
    error = kind(status, document)
    error.retry_after = retry_after
    error.request_id = request_id
    return error


class PermanentError(TidegateError):
    """A handler raises it to end the job ``failed`` without another attempt.

    ``details`` is any JSON value of at most 16 KiB, which the job shows as its error's details.
    """

    def __init__(self, message: str, details: Any = None) -> None:
        super().__init__(message)
        self.details = details


class Snooze(TidegateError):
    """A handler raises it to hand the job back for a while.

    The attempt does not count. Give ``seconds``, or ``until`` as an instant with a time zone.
    """

    def __init__(
        self, seconds: float | None = None, message: str = "", *, until: Any = None
    ) -> None:
        if (seconds is None) == (until is None):
            raise ValueError("give either seconds or until")
        super().__init__(message or "snoozed by its handler")
        self.seconds = seconds
        self.until = until


class Release(TidegateError):
    """A handler raises it to hand the job back at once, before its work has begun."""

    def __init__(self, message: str = "released by its handler") -> None:
        super().__init__(message)


class JobAborted(TidegateError):
    """The attempt of the running handler is over: stop the work.

    ``reason`` is ``cancelled`` (a caller cancelled the job), ``lease_lost`` (another worker may
    have the job) or ``stopping`` (this worker ends now).
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the attempt is over: {reason}")
        self.reason = reason
