"""The trace context of the job that runs in this thread or task."""

from __future__ import annotations

from contextvars import ContextVar

traceparent: ContextVar[str | None] = ContextVar("tidegate_traceparent", default=None)
