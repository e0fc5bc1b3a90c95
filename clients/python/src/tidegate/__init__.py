"""Client, worker, push handlers and test kit for the job queue tidegate.

::

    from tidegate import Client, Worker

    Client().enqueue("letter", {"to": "ann@example.com"})

    worker = Worker()

    @worker("letter", concurrency=3)
    def send(letter):
        ...

    worker.run()
"""

from ._http import VERSION, RetryPolicy
from .client import AsyncClient, BatchItem, Client, Job, JobType, NewJob
from .config import Config, Difference, Plan, Step
from .context import JobContext
from .database import enqueue_in, enqueue_in_async
from .errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    JobAborted,
    JobFailed,
    NotFound,
    PermanentError,
    PreconditionFailed,
    ProblemError,
    Release,
    ServerFault,
    Snooze,
    TidegateError,
    Unauthorized,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
    WaitTimeout,
)
from .push import Callback, Later, Push, PushJob, verify
from .stream import Change, Stream
from .worker import Worker

__version__ = VERSION

__all__ = [
    "AsyncClient",
    "BatchItem",
    "Callback",
    "Change",
    "Client",
    "Config",
    "Conflict",
    "Difference",
    "Forbidden",
    "InvalidRequest",
    "Job",
    "JobAborted",
    "JobContext",
    "JobFailed",
    "JobType",
    "Later",
    "NewJob",
    "NotFound",
    "PermanentError",
    "Plan",
    "PreconditionFailed",
    "ProblemError",
    "Push",
    "PushJob",
    "Release",
    "RetryPolicy",
    "ServerFault",
    "Snooze",
    "Step",
    "Stream",
    "TidegateError",
    "Unauthorized",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "WaitTimeout",
    "Worker",
    "__version__",
    "enqueue_in",
    "enqueue_in_async",
    "verify",
]
