"""Enqueues in transactions of a real Postgres, whose role has the documented rights.

``clients/conformance/postgres.py`` runs it next to Postgres and a server. libpq reads its address.
"""

import asyncio
from datetime import datetime, timezone

import psycopg
import pytest
from psycopg.rows import dict_row

from tidegate import Client, NotFound, enqueue_in, enqueue_in_async

LETTER = {"to": "ann", "text": "50 % \"quoted\" 'twice' \\ ä"}


@pytest.fixture
def client():
    with Client() as client:
        yield client


def test_a_job_exists_if_and_only_if_its_transaction_commits(client):
    at = datetime(2100, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc)
    with psycopg.connect() as connection:
        with connection.transaction():
            kept = enqueue_in(connection, "letter", LETTER, run_at=at, priority=7)
            with connection.cursor(row_factory=dict_row) as cursor:
                later = enqueue_in(cursor, "letter", delay_seconds=86_400.5)
        with connection.transaction(force_rollback=True):
            undone = enqueue_in(connection, "letter")
    job = client.job(kept)
    assert (job.raw["data"], job.raw["priority"]) == (LETTER, 7)
    assert (job.raw["due_at"], job.phase) == ("2100-01-02T03:04:05.678Z", "scheduled")
    assert job.raw["enqueued_by"] == "sql:shop"
    assert (client.job(later).raw["data"], client.job(later).phase) == (None, "scheduled")
    with pytest.raises(NotFound):
        client.job(undone)


def test_a_connection_of_asyncio_enqueues(client):
    async def enqueue():
        async with await psycopg.AsyncConnection.connect() as connection:
            return await enqueue_in_async(connection, "letter", LETTER)

    assert client.job(asyncio.run(enqueue())).raw["data"] == LETTER


def test_an_error_of_the_database_is_that_of_the_driver():
    with (
        psycopg.connect() as connection,
        pytest.raises(psycopg.errors.InvalidParameterValue, match="there is no job type none"),
    ):
        enqueue_in(connection, "none")
