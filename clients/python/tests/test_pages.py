"""The programs in Python of the book's pages work as they are printed."""

import asyncio
import base64
import hashlib
import hmac
import json
import pathlib
import re
import sys
import time
import types

import pytest
from fastapi.testclient import TestClient

from tidegate.testing import DevServer

DOCS = pathlib.Path(__file__).resolve().parents[3] / "docs"


def programs(page):
    """Return the blocks in Python of a page."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture
def load(monkeypatch):
    """Return a function that runs a program as a module."""

    def run(program):
        module = types.ModuleType("page")
        monkeypatch.setitem(sys.modules, "page", module)
        exec(compile(program, "page.py", "exec"), module.__dict__)
        return module

    return run


def signed(body, secret):
    at = str(int(time.time()))
    digest = hmac.new(secret, f"m.{at}.".encode() + body, hashlib.sha256).digest()
    signature = "v1," + base64.b64encode(digest).decode()
    return {"webhook-id": "m", "webhook-timestamp": at, "webhook-signature": signature}


def test_the_application_of_fastapi_answers_pushes_and_enqueues(load, monkeypatch):
    (program,) = programs("fastapi.md")
    with DevServer() as server:
        monkeypatch.setenv("TIDEGATE_SECRET", "an-example")
        monkeypatch.setenv("TIDEGATE_URL", server.client.url)
        server.client.request("PUT", "/v1/job-types/resize", {})
        page = load(program)
        with TestClient(page.app) as app:
            job_id = app.post("/images", json={"width": 8}).json()["job"]
            (enqueued,) = server.assert_enqueued("resize", data={"width": 8})
            assert enqueued.id == job_id
            for job_type, status in [("resize", 200), ("film", 202)]:
                pushed = {
                    "id": "1", "type": job_type, "attempt": 1, "max_attempts": 3,
                    "data": {"width": 8}, "attributes": {},
                    "callback": {"url": f"{server.client.url}/v1/jobs/{job_type}/1", "token": "t"},
                }  # fmt: skip
                body = json.dumps(pushed).encode()
                headers = signed(body, b"an-example")
                answer = app.post(f"/jobs/{job_type}", content=body, headers=headers)
                assert answer.status_code == status
                assert status == 202 or answer.json() == {"width": 4}
        assert asyncio.run(asyncio.to_thread(page.push.join, 10))


def test_the_workers_on_aws_run(load):
    function, container = programs("aws-workers.md")
    handler = load(function).handler
    assert handler({"data": {"width": 8}}, None) == {"width": 4}
    with pytest.raises(ValueError, match="positive"):
        handler({"data": {"width": 0}}, None)
    with DevServer() as server:
        worker = load(container).worker
        worker.apply(server.client)
        server.client.enqueue("render", {"steps": 3})
        (run,) = server.drain(worker)
        assert (run.status, run.result) == ("succeeded", {"steps": 3})
