"""Enqueue in a transaction of the application, in the Postgres database of the servers.

::

    with connection.transaction():
        connection.execute("INSERT INTO orders (id) VALUES (%s)", [17])
        job_id = enqueue_in(connection, "invoice", {"order": 17}, delay_seconds=300)

The job exists if and only if the transaction commits. Nothing here imports a driver.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from . import _context
from ._http import dumps
from .client import JobType, NewJob

T = TypeVar("T")
# What the SQL function would refuse, too. But its error would end the transaction.
_SCHEMA = re.compile(r"[a-z][a-z0-9_]{0,62}")
_TYPE = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
# Each value goes as a text: a driver need not know the types of the others.
_ARGUMENTS = {
    "type": "text",
    "data": "text::json",
    "delay": "text::interval",
    "run_at": "text::timestamptz",
    "options": "text::json",
}
# The placeholders of DB-API drivers for Postgres, and those of Postgres itself.
_FORMAT = ("%s",) * len(_ARGUMENTS)
_NUMBERED = tuple(f"${number}" for number in range(1, len(_ARGUMENTS) + 1))


def enqueue_in(
    connection: Any,
    job_type: str | JobType[T],
    data: T | Any = None,
    *,
    schema: str = "tidegate",
    **options: Any,
) -> str:
    """Enqueue a job in the transaction of a database connection, and return its id.

    ``connection`` is a connection or a cursor of the DB-API: of psycopg, psycopg2, pg8000, or
    Django. The call neither begins nor ends a transaction. If a job with the same ``unique`` key
    answers the request, no job has the returned id.

    ``schema`` is that of the servers. The other options are those of :class:`NewJob` without
    ``id``, which the database makes, and ``critical``, which needs a token.

    Raises ``ValueError`` or ``TypeError`` for a wrong argument before anything is sent. The errors
    of the driver are not changed. What only a server can check becomes a dead letter.
    """
    if inspect.iscoroutinefunction(getattr(connection, "execute", None)):
        raise TypeError("connection: it is one of asyncio, for enqueue_in_async")
    sql, values = _statement(_FORMAT, job_type, data, schema, options)
    if hasattr(connection, "fetchone"):
        connection.execute(sql, values)
        return _id_of(connection.fetchone())
    cursor = connection.cursor()
    try:
        cursor.execute(sql, values)
        return _id_of(cursor.fetchone())
    finally:
        cursor.close()


async def enqueue_in_async(
    connection: Any,
    job_type: str | JobType[T],
    data: T | Any = None,
    *,
    schema: str = "tidegate",
    **options: Any,
) -> str:
    """As :func:`enqueue_in`, with a connection of asyncpg, or an async one or cursor of psycopg."""
    if hasattr(connection, "fetchval"):
        sql, values = _statement(_NUMBERED, job_type, data, schema, options)
        return str(await connection.fetchval(sql, *values))
    sql, values = _statement(_FORMAT, job_type, data, schema, options)
    cursor = await connection.execute(sql, values)
    return _id_of(await cursor.fetchone())


def _statement(
    placeholders: tuple[str, ...],
    job_type: str | JobType[Any],
    data: Any,
    schema: str,
    options: dict[str, Any],
) -> tuple[str, tuple[str | None, ...]]:
    """Return the call of the SQL function, and the values of its placeholders."""
    if not _SCHEMA.fullmatch(schema):
        raise ValueError("schema: must be 1 to 63 of a-z 0-9 _, and begin with a letter")
    if options.get("id") is not None:
        raise ValueError("id: must not be given, because the database makes it")
    if options.get("critical"):
        raise ValueError("critical: must not be given, because it needs a token")
    body = NewJob(job_type, data, **options).body
    name = body.pop("type")
    if not _TYPE.fullmatch(name) or name in (".", ".."):
        raise ValueError('job_type: must be 1 to 64 of A-Z a-z 0-9 _ . -, and not "." or ".."')
    carried = dumps(body.pop("data")).decode()
    delay, run_at = _delay(body.pop("delay_seconds", None)), _run_at(body.pop("run_at", None))
    if delay is not None and run_at is not None:
        raise ValueError("delay_seconds: must not be given with run_at")
    trace, headers = _context.traceparent.get(), body.get("headers", {})
    if trace and not any(header.lower() == "traceparent" for header in headers):
        body["headers"] = {**headers, "traceparent": trace}
    arguments = ", ".join(
        f"{argument} => {placeholder}::{kind}"
        for (argument, kind), placeholder in zip(_ARGUMENTS.items(), placeholders, strict=True)
    )
    values = (name, carried, delay, run_at, dumps(body).decode())
    return f'SELECT "{schema}".enqueue({arguments}) AS id', values


def _delay(seconds: float | None) -> str | None:
    """Return a span as Postgres reads it."""
    if seconds is None:
        return None
    if not isinstance(seconds, (int, float)) or not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"delay_seconds: must be a number of seconds from 0, not {seconds!r}")
    return f"{seconds:.3f} seconds"


def _run_at(instant: str | None) -> str | None:
    """Return an instant, if it means the same in every session of Postgres."""
    if instant is not None and (not _INSTANT.fullmatch(instant) or instant < "1970"):
        raise ValueError(
            f"run_at: must be from 1970 to 9999, such as 2030-01-02T03:04:05Z, not {instant!r}"
        )
    return instant


def _id_of(row: Any) -> str:
    """Return the one value of a row, which is what the row factory of the application makes."""
    if isinstance(row, Mapping):
        return str(row["id"])
    return str(row if isinstance(row, str) else row[0])
