"""Parts of the client that need no server."""

import asyncio
import base64
import hashlib
import hmac
import io
import json
import time
from dataclasses import dataclass
from datetime import datetime, timezone

import flask
import pydantic
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tidegate import Client, Config, JobContext, PermanentError, Push, Worker, errors, verify
from tidegate._handler import Handler
from tidegate._http import backoff
from tidegate.codec import decode, encode, instant
from tidegate.config import differences_of, without_secrets
from tidegate.defaults import DEFAULTS
from tidegate.push import Refused
from tidegate.testing import run_in_place


@dataclass
class Address:
    city: str


@dataclass
class Person:
    name: str
    home: Address


class Model(pydantic.BaseModel):
    at: datetime


def test_data_is_encoded_and_decoded_at_any_depth():
    ann = Person("ann", Address("Ulm"))
    assert encode([ann]) == [{"name": "ann", "home": {"city": "Ulm"}}]
    assert decode(Person, encode(ann)) == ann
    at = datetime(2030, 1, 2, tzinfo=timezone.utc)
    assert decode(Model, encode(Model(at=at))).at == at
    assert encode({"at": at}) == {"at": "2030-01-02T00:00:00.000Z"}
    with pytest.raises(TypeError, match="no field 'age'"):
        decode(Person, {"name": "ann", "age": 3})
    with pytest.raises(ValueError, match="time zone"):
        instant(datetime(2030, 1, 2))


def test_handlers_take_data_job_or_both():
    job = JobContext({"id": "1", "type": "t", "max_attempts": 3, "data": {"city": "Ulm"}}, 2, None)

    def call(function):
        job.data = {"city": "Ulm"}
        return Handler(("t",), function).report(job)

    assert call(lambda data: data["city"])["result"] == "Ulm"

    def only_job(job: JobContext[Address]):
        return [job.data.city, job.attempt]

    assert call(only_job)["result"] == ["Ulm", 2]
    assert call(lambda: "nothing")["result"] == "nothing"
    with pytest.raises(TypeError, match="takes the data, the job, or both"):
        Handler(("t",), lambda a, b, c: None)

    def unreadable(data: Person):
        raise AssertionError("it must not be called")

    report = call(unreadable)
    assert (report["status"], report["retryable"]) == ("failed", False)


def test_reports_fit_the_bounds_of_the_server():
    job = JobContext({"id": "1", "type": "t", "max_attempts": 3}, 1, None)

    def deep(n=3000):
        raise ValueError("ä" * 5000)

    report = Handler(("t",), deep).report(job)
    assert len(report["message"].encode()) <= 4096

    def large():
        raise PermanentError("no", ["x" * 20_000])

    report = Handler(("t",), large).report(job)
    assert len(json.dumps(report["error"])) < 16 << 10
    with pytest.raises(ValueError, match="64 KiB"):
        job.save_checkpoint("x" * 70_000)
    with pytest.raises(ValueError, match="0 to 100"):
        job.progress(101)
    for number in range(1500):
        job.log(str(number))
    assert len(job._take_changes()["log"]) == 1000


def test_errors_have_a_class_for_each_reaction():
    for status, code, kind in [
        (400, "invalid_field", errors.InvalidRequest),
        (401, "unauthorized", errors.Unauthorized),
        (404, "job_not_found", errors.NotFound),
        (408, "wait_timeout", errors.WaitTimeout),
        (409, "job_failed", errors.JobFailed),
        (409, "id_taken", errors.Conflict),
        (409, "concurrent_update", errors.Conflict),
        (429, "", errors.Unavailable),
        (500, "internal", errors.ServerFault),
    ]:
        error = errors.problem(status, {"code": code}, retry_after=3.0)
        assert type(error) is kind
        assert error.retryable == (status == 429 or code == "concurrent_update")
        assert error.retry_after == 3.0
    assert errors.Unreachable().retryable
    assert (errors.Snooze(3).retryable, errors.Unreachable().retry_after) == (False, None)


def test_a_handler_in_place_gets_and_returns_json():
    def both(home: Address, job: JobContext):
        return [home, job.checkpoint]

    found = run_in_place(both, {"city": "Ulm"}, checkpoint=(1, 2))
    assert found == [{"city": "Ulm"}, [1, 2]]
    with pytest.raises(TypeError, match="not JSON serializable"):
        run_in_place(lambda _: object())
    with pytest.raises(TypeError, match="no field 'zip'"):
        run_in_place(both, {"city": "Ulm", "zip": 1})


def test_backoff_is_bounded_and_grows():
    for tries in (1, 2, 5, 100):
        span = min(10, 0.1 * 2 ** (tries - 1))
        assert all(span / 2 <= backoff(tries) <= span for _ in range(50))


def test_urls_that_are_not_ones_of_http_are_refused():
    for url in ("ftp://a", "http://u:p@a", "http://a?b=c", "http://"):
        with pytest.raises(ValueError):
            Client(url)


def test_differences_are_those_of_the_declared_settings():
    def fields(settings, **current):
        defaults = DEFAULTS["job type"]
        found = differences_of(defaults, without_secrets(settings), {**defaults, **current})
        return [difference.field for difference in found]

    assert fields({}) == []
    assert fields({"weight": 2}) == ["weight"]
    assert fields({}, weight=2) == ["weight"]
    assert fields({"retry": {"strategy": "exponential"}}) == []
    assert fields({"retry": {"strategy": "exponential", "config": {"base_seconds": 3}}}) == [
        "retry"
    ]
    assert fields({"concurrency": 0}) == ["concurrency"]
    assert fields({}, target={"url": "http://a"}) == ["target"]
    push = {"url": "http://a", "signing_secret": "s"}
    assert fields({"target": push}, target={"url": "http://a", "encoding": "json"}) == []
    assert fields({"target": push}, target={"url": "http://a", "headers": {"a": "b"}}) == ["target"]
    config = Config()
    config.queue("a", concurrency=1)
    config.queue("a", concurrency=1)
    with pytest.raises(ValueError, match="declared twice"):
        config.queue("a", concurrency=2)


def test_mistakes_of_a_registration_are_errors():
    worker = Worker(Client("http://127.0.0.1:9"))
    worker("a")(lambda data: data)
    with pytest.raises(ValueError, match="handler already"):
        worker("a")
    with pytest.raises(ValueError, match="concurrency"):
        worker("b", concurrency=0)
    with pytest.raises(TypeError):
        worker()
    with pytest.raises(ValueError, match="at least one"):
        Push([])
    with pytest.raises(ValueError, match="base64"):
        Push("whsec_?")


def signed(body, secret=b"s"):
    at = str(int(time.time()))
    digest = hmac.new(secret, f"m.{at}.".encode() + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(digest).decode()
    return {"webhook-id": "m", "webhook-timestamp": at, "webhook-signature": signature}


def pushed(data):
    callback = {"url": "http://127.0.0.1:9/v1/jobs/resize/1", "token": "t"}
    job = {"id": "1", "type": "resize", "attempt": 1, "max_attempts": 3, "attributes": {}}
    return json.dumps({**job, "data": data, "callback": callback}).encode()


def push_of():
    push = Push("s", max_body_bytes=2000)

    @push("resize")
    async def resize(address: Address) -> Address:
        await asyncio.sleep(0)
        return address

    return push


def test_a_push_runs_in_fastapi():
    app = FastAPI()
    app.mount("/jobs", push_of().asgi)
    client = TestClient(app)
    body = pushed({"city": "Ulm"})
    answer = client.post("/jobs/resize/1", content=body, headers=signed(body))
    assert (answer.status_code, answer.json()) == (200, {"city": "Ulm"})
    assert client.post("/jobs/", content=body).status_code == 401
    assert client.get("/jobs/").status_code == 405
    assert client.post("/jobs/", content=b"x" * 3000).status_code == 413


def test_a_push_runs_in_flask_and_wsgi():
    push, app = push_of(), flask.Flask("test")

    @app.post("/jobs")
    def jobs():
        return push.flask(flask.request)

    body = pushed({"city": "Ulm"})
    answer = app.test_client().post("/jobs", data=body, headers=signed(body))
    assert (answer.status_code, answer.json) == (200, {"city": "Ulm"})
    wrong = pushed({"city": "Ulm", "zip": 1})
    assert app.test_client().post("/jobs", data=wrong, headers=signed(wrong)).status_code == 489
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        **{f"HTTP_{k.upper().replace('-', '_')}": v for k, v in signed(body).items()},
    }
    started = []
    assert json.loads(b"".join(push.wsgi(environ, lambda *args: started.append(args)))) == {
        "city": "Ulm"
    }
    assert started[0][0] == "200 OK"


def test_a_signature_of_another_secret_or_body_is_refused():
    headers = signed(b"{}")
    verify("s", headers, b"{}")
    verify(["other", "s"], headers, b"{}")
    for secrets, body, now in [("t", b"{}", None), ("s", b"{ }", None), ("s", b"{}", 0)]:
        with pytest.raises(Refused):
            verify(secrets, headers, body, now=now)
