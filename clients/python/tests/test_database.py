"""Enqueues in the transaction of a connection that records what it gets."""

import asyncio
import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import pytest

from tidegate import JobType, _context, enqueue_in, enqueue_in_async

SQL = (
    'SELECT "tidegate".enqueue(type => %s::text, data => %s::text::json, '
    "delay => %s::text::interval, run_at => %s::text::timestamptz, options => %s::text::json) AS id"
)


class Cursor:
    """A cursor of the DB-API, which has no more than what is called."""

    def __init__(self, row=("j1",), error=None):
        self.row, self.error = row, error
        self.calls = []
        self.closed = 0

    def execute(self, sql, values):
        self.calls.append((sql, values))
        if self.error:
            raise self.error

    def fetchone(self):
        return self.row

    def close(self):
        self.closed += 1


class Connection:
    def __init__(self, row=("j1",), error=None):
        self.opened = Cursor(row, error)

    def cursor(self):
        return self.opened


class AsyncCursor:
    """As one of psycopg."""

    def __init__(self):
        self.calls = []

    async def execute(self, sql, values):
        self.calls.append((sql, values))
        return self

    async def fetchone(self):
        return ("j1",)


class AsyncpgConnection:
    def __init__(self):
        self.calls = []

    async def execute(self, sql, *values):
        raise AssertionError("it returns no row")

    async def fetchval(self, sql, *values):
        self.calls.append((sql, values))
        return "j1"


@dataclass
class Order:
    number: int


def test_a_call_has_the_arguments_of_the_function():
    connection = Connection()
    invoice = JobType("invoice", Order)
    retry = {"strategy": "fixed", "delay_seconds": 5}
    found = enqueue_in(
        connection,
        invoice,
        Order(17),
        delay_seconds=90.5,
        priority=7,
        expires_at=datetime(2030, 1, 2, tzinfo=timezone.utc),
        retry=retry,
        headers={"tenant": "a"},
    )
    assert found == "j1"
    [(sql, (name, data, delay, run_at, options))] = connection.opened.calls
    assert sql == SQL
    assert (name, data, delay, run_at) == ("invoice", '{"number":17}', "90.500 seconds", None)
    assert json.loads(options) == {
        "expires_at": "2030-01-02T00:00:00.000Z",
        "priority": 7,
        "retry": retry,
        "headers": {"tenant": "a"},
    }
    assert connection.opened.closed == 1


def test_a_call_without_options_has_their_defaults():
    cursor = Cursor()
    at = datetime(2030, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    assert enqueue_in(cursor, "invoice") == "j1"
    enqueue_in(cursor, "invoice", run_at=at, schema="jobs_2")
    enqueue_in(cursor, "invoice", run_at="2030-01-02T03:04:05+01:00")
    (first, second, third) = cursor.calls
    assert first == (SQL, ("invoice", "null", None, None, "{}"))
    assert second[0] == SQL.replace("tidegate", "jobs_2")
    assert second[1][2:] == (None, "2030-01-02T02:04:05.000Z", "{}")
    assert third[1][3] == "2030-01-02T03:04:05+01:00"
    # The cursor is the application's.
    assert cursor.closed == 0


@pytest.mark.parametrize("row", [("j1",), ["j1"], {"id": "j1"}, "j1"])
def test_rows_of_every_kind_have_the_id(row):
    assert enqueue_in(Connection(row), "invoice") == "j1"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"job_type": ""}, "job_type: "),
        ({"job_type": "a b"}, "job_type: "),
        ({"job_type": ".."}, "job_type: "),
        ({"schema": 'a".b'}, "schema: "),
        ({"id": "one"}, "id: "),
        ({"critical": True}, "critical: "),
        ({"idempotency_key": "k"}, "idempotency_key"),
        ({"delay_seconds": -0.1}, "delay_seconds: "),
        ({"delay_seconds": float("nan")}, "delay_seconds: "),
        ({"delay_seconds": timedelta(minutes=5)}, "delay_seconds: "),
        ({"delay_seconds": 1, "run_at": "2030-01-02T03:04:05Z"}, "delay_seconds: .* run_at"),
        ({"run_at": datetime(2030, 1, 2)}, "time zone"),
        ({"run_at": "2030-01-02T03:04:05"}, "run_at: "),
        ({"run_at": "tomorrow"}, "run_at: "),
        ({"run_at": "1969-12-31T23:59:59Z"}, "run_at: "),
        ({"data": float("nan")}, "JSON"),
        ({"data": object()}, "JSON"),
        ({"expires": 1}, "expires"),
    ],
)
def test_a_wrong_argument_is_named_before_anything_is_sent(arguments, named):
    connection = Connection()
    with pytest.raises((ValueError, TypeError), match=named):
        enqueue_in(connection, **{"job_type": "invoice", **arguments})
    assert connection.opened.calls == []


def test_an_error_of_the_database_is_passed_through():
    error = RuntimeError("type: there is no job type invoice")
    connection = Connection(error=error)
    with pytest.raises(RuntimeError) as caught:
        enqueue_in(connection, "invoice")
    assert caught.value is error
    assert connection.opened.closed == 1


def test_an_enqueue_of_a_handler_carries_its_trace_on():
    cursor = Cursor()
    token = _context.traceparent.set("00-1-2-01")
    try:
        enqueue_in(cursor, "invoice", headers={"tenant": "a"})
        enqueue_in(cursor, "invoice", headers={"Traceparent": "00-3-4-01"})
    finally:
        _context.traceparent.reset(token)
    headers = [json.loads(values[4])["headers"] for _, values in cursor.calls]
    assert headers == [{"tenant": "a", "traceparent": "00-1-2-01"}, {"Traceparent": "00-3-4-01"}]


def test_connections_of_asyncio_are_awaited():
    values = ("invoice", "17", None, None, '{"priority":7}')
    cursor, connection = AsyncCursor(), AsyncpgConnection()
    for place in (cursor, connection):
        assert asyncio.run(enqueue_in_async(place, "invoice", 17, priority=7)) == "j1"
        with pytest.raises(TypeError, match="enqueue_in_async"):
            enqueue_in(place, "invoice")
    assert cursor.calls == [(SQL, values)]
    numbered = SQL
    for number in range(1, 6):
        numbered = numbered.replace("%s", f"${number}", 1)
    assert connection.calls == [(numbered, values)]
