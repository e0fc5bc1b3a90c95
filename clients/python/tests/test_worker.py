"""The worker, the test kit and the push handlers against a real server."""

import asyncio
import gc
import json
import threading
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import flask
import pydantic
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from test_parts import signed

from tidegate import (
    Client,
    Config,
    InvalidRequest,
    JobAborted,
    JobContext,
    JobFailed,
    JobType,
    Later,
    NewJob,
    NotFound,
    PermanentError,
    PreconditionFailed,
    Push,
    PushJob,
    Snooze,
    WaitTimeout,
    Worker,
)
from tidegate.testing import run_in_place, wait_until


@dataclass
class Letter:
    to: str
    pages: int = 1


class Image(pydantic.BaseModel):
    width: int
    height: int = 1


def worker_of(server, **options):
    return Worker(server.client, wait_seconds=5, **options)


def test_a_worker_runs_typed_jobs(shared_server):
    worker = worker_of(shared_server)

    @worker("typed-letter", concurrency=3, config={"max_attempts": 2})
    def letter(letter: Letter, job: JobContext[Letter]) -> dict:
        job.progress(50, "half")
        job.log("printed", "debug", pages=letter.pages)
        return {"to": letter.to, "pages": letter.pages, "attempt": job.attempt}

    @worker("typed-image")
    async def image(image: Image) -> Image:
        await asyncio.sleep(0)
        return Image(width=image.width * 2)

    shared_server.apply(worker)
    client = shared_server.client
    with worker:
        one = client.enqueue(JobType("typed-letter", Letter), Letter("ann", 2))
        two = client.enqueue("typed-image", Image(width=4))
        assert one.result(10) == {"to": "ann", "pages": 2, "attempt": 1}
        assert two.result(10) == {"width": 8, "height": 1}
        wrong = client.enqueue("typed-letter", {"to": "ann", "pagse": 2})
        with pytest.raises(JobFailed) as failed:
            wrong.result(10)
        assert "no field 'pagse'" in failed.value.message
        assert wrong.refresh().raw["attempt"] == 1
    assert [line["text"] for line in client.log(one.type, one.id)] == ["printed"]
    assert worker.name not in [w["name"] for w in client.pages("/v1/workers", "workers")]


def test_outcomes_of_handlers(server):
    worker = worker_of(server)
    tries = []

    @worker("outcome", config={"retry": {"strategy": "exponential", "config": {"base_seconds": 5}}})
    def handler(what, job: JobContext):
        tries.append(what)
        if what == "fail":
            raise ValueError("no paper")
        if what == "permanent":
            raise PermanentError("bad address", {"line": 3})
        if what == "snooze" and len(tries) == 1:
            job.save_checkpoint({"page": 7})
            raise Snooze(60, "not yet")
        return job.checkpoint

    server.freeze()
    server.apply(worker)
    client = server.client
    client.enqueue("outcome", "permanent", id="p")
    client.enqueue("outcome", "fail", id="f")
    assert [run.status for run in server.drain(worker)] == ["failed", "failed"]
    permanent, failed = client.job("p"), client.job("f")
    assert permanent.state == "failed"
    assert permanent.raw["error"]["details"] == {"line": 3}
    assert failed.phase == "retrying"
    assert "no paper" in failed.raw["error"]["details"]["trace"]
    assert failed.raw["error"]["message"] == "ValueError: no paper"
    client.cancel("outcome", "f")

    tries.clear()
    client.enqueue("outcome", "snooze", id="s")
    assert [run.status for run in server.drain(worker)] == ["snoozed"]
    assert server.drain(worker) == []
    server.advance(minutes=1)
    assert server.drain(worker)[0].result == {"page": 7}
    server.assert_enqueued("outcome", data="snooze", count=1)
    with pytest.raises(AssertionError, match="not at least one"):
        server.assert_enqueued("outcome", priority=7)
    assert server.now() - server.freeze() == timedelta()


def test_cancel_aborts_a_handler(shared_server):
    worker = worker_of(shared_server, lease_seconds=3)
    began, reasons = threading.Event(), []

    @worker("cancelled", "cancelled-async", concurrency=2)
    def handler(_, job: JobContext):
        began.set()
        try:
            job.sleep(30)
        except JobAborted as aborted:
            reasons.append(aborted.reason)
            raise

    shared_server.apply(worker)
    with worker:
        job = shared_server.client.enqueue("cancelled")
        assert began.wait(10)
        job.cancel()
        with pytest.raises(JobFailed) as failed:
            job.result(10)
    assert (failed.value.state, reasons) == ("cancelled", ["cancelled"])


def test_a_lost_lease_aborts_an_async_handler(server):
    worker = worker_of(server, lease_seconds=1)
    states = []

    @worker("lost")
    async def handler(_, job: JobContext):
        if job.attempt > 1:
            return "second"
        states.append("began")
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            states.append(job.abort_reason)
            raise
        return "first"

    server.apply(worker)
    server.client.request("PATCH", "/v1/job-types/lost", {"retry": None})
    with worker:
        job = server.client.enqueue("lost")
        wait_until(lambda: states)
        server.advance(10)
        wait_until(lambda: len(states) > 1)
        server.advance(60)
        assert job.result(10) == "second"
    assert states == ["began", "lease_lost"]


def test_a_stop_hands_back_and_waits(server):
    worker = worker_of(server)
    running, go = threading.Event(), threading.Event()

    @worker("stop")
    def handler(data):
        running.set()
        go.wait(10)
        return data

    server.apply(worker)
    client = server.client
    worker.start()
    first = client.enqueue("stop", 1)
    assert running.wait(10)
    second = client.enqueue("stop", 2)
    worker.stop()
    go.set()
    assert worker.join(10)
    assert first.result(0) == 1
    assert second.refresh().phase == "ready"


def test_an_unknown_type_ends_the_worker(shared_server):
    worker = worker_of(shared_server)
    worker("unknown-type")(lambda data: data)
    with pytest.raises(NotFound) as missing:
        worker.run()
    assert missing.value.code == "job_type_not_found"


def test_results_that_cannot_be_stored(shared_server):
    worker = worker_of(shared_server)

    @worker("large", concurrency=2)
    def handler(data):
        return object() if data == "object" else "x" * (5 << 20)

    shared_server.apply(worker)
    with worker:
        large = shared_server.client.enqueue("large", "large")
        strange = shared_server.client.enqueue("large", "object")
        for job, text in ((large, "refused"), (strange, "not a JSON value")):
            with pytest.raises(JobFailed):
                job.result(10)
            assert text in job.refresh().raw["error"]["message"]
            assert job.refresh().raw["attempt"] == 1


def test_a_trace_goes_through_a_handler(shared_server):
    worker = worker_of(shared_server)
    client = shared_server.client
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @worker("trace-in")
    def handler(_, job: JobContext):
        client.enqueue("trace-out", id="out")
        return job.traceparent

    shared_server.apply(worker)
    client.request("PUT", "/v1/job-types/trace-out", {})
    tracing = Client(shared_server.url, traceparent=lambda: trace)
    with worker:
        assert tracing.enqueue("trace-in").result(10) == trace
    assert client.job("out").raw["headers"]["traceparent"] == trace


def test_enqueue_results_and_errors(shared_server):
    client = shared_server.client
    client.request("PUT", "/v1/job-types/plain", {})
    one = client.enqueue("plain", {"n": 1}, idempotency_key="k-1", delay_seconds=600)
    again = client.enqueue("plain", {"n": 1}, idempotency_key="k-1", delay_seconds=600)
    assert (one.is_new, again.is_new, one.id) == (True, False, again.id)
    with pytest.raises(WaitTimeout):
        one.result(0.1)
    with pytest.raises(InvalidRequest) as wrong:
        client.enqueue("plain", priority="high")
    assert wrong.value.field == "priority"
    items = client.enqueue_many([NewJob("plain", n) for n in range(1200)] + [NewJob("nowhere")])
    assert len(items) == 1201
    assert all(item.job.is_new for item in items[:-1])
    assert items[-1].error.code == "job_type_not_found"
    assert client.change("plain", one.id, priority=5).raw["priority"] == 5
    assert one.cancel().state == "cancelled"
    with pytest.raises(JobFailed) as failed:
        one.result(1)
    assert failed.value.state == "cancelled"
    assert client.replay("plain", one.id).raw["replay_of"] == one.id


def test_plans_show_and_apply_changes(shared_server):
    client = shared_server.client
    config = Config()
    limit = {"name": "per", "per": "tenant", "rate": {"count": 5, "per_seconds": 1}}
    config.queue("plan-queue", concurrency=3, constraints=[limit])
    window = {"from": "08:00", "to": "17:00", "tz": "Europe/Berlin", "days": ["mon"]}
    config.job_type("plan-type", queue="plan-queue", max_attempts=6, windows=[window])
    config.job_type(
        "plan-push",
        target={"url": "http://127.0.0.1:9/x", "signing_secret": "s"},
        retry={"strategy": "exponential", "config": {"base_seconds": 3}},
        callback_signing_secret="c",
    )
    config.schedule("plan-nightly", type="plan-type", cron="0 3 * * *", data={"n": 1})
    config.trigger("plan-trigger", filter={"type": "a"}, enqueue={"type": "plan-type"})
    plan = client.plan(config)
    assert "+ queue plan-queue" in str(plan)
    assert [step.action for step in plan.steps] == ["create"] * 5
    assert "'s'" not in str(plan) and "'c'" not in str(plan)
    plan.apply()
    assert str(client.plan(config)) == "nothing to change"
    client.request("PATCH", "/v1/job-types/plan-push", {"callback_signing_secret": "d"})
    assert str(client.plan(config)).splitlines()[1] == "    callback_signing_secret: *** -> ***"
    assert str(client.plan(config, secrets=False)) == "nothing to change"
    client.apply(config)
    assert str(client.plan(config)) == "nothing to change"

    client.request("POST", "/v1/schedules/plan-nightly/pause")
    client.request("PATCH", "/v1/job-types/plan-type", {"weight": 2, "windows": []})
    plan = client.plan(config)
    assert str(plan).splitlines()[0] == "~ job type plan-type"
    assert "    weight: 2 -> 1" in str(plan)
    client.request("PATCH", "/v1/job-types/plan-type", {"weight": 3})
    with pytest.raises(PreconditionFailed):
        plan.apply()
    client.apply(config)
    assert client.request("GET", "/v1/job-types/plan-type")["weight"] == 1
    assert client.request("GET", "/v1/schedules/plan-nightly")["paused"] is True


def test_events_and_the_stream(shared_server):
    client = shared_server.client
    client.request("PUT", "/v1/job-types/from-event", {})
    config = Config()
    config.trigger("on-paid", filter={"type": "paid"}, enqueue={"type": "from-event"})
    client.apply(config)
    with client.stream(job_type="from-event") as stream:
        assert next(stream).name == "ready"
        done = client.send_event("paid", "/shop", {"order": 7}, extensions={"region": "east"})
        assert done["outcomes"][0]["action"] == "enqueued"
        change = next(stream)
        assert (change.name, change.data["phase"]) == ("job", "ready")
    assert client.job(change.data["id"]).raw["data"] == {"order": 7}


def push_server(push):
    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            answer = push.handle("POST", dict(self.headers), body)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, *_):
            pass

    receiver = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    return receiver


def test_push_handlers(shared_server):
    client = shared_server.client
    push = Push(["new", "old"], clock=shared_server.time)
    kept = []

    @push("push-now")
    def now(image: Image, job: JobContext):
        if image.width == 1:
            raise PermanentError("too small")
        if image.width == 2:
            raise Snooze(600, "later")
        job.log("resized")
        return {"width": image.width * 2}

    @push("push-later")
    def later(_, job: PushJob):
        kept.append(job.callback)
        return Later()

    @push("push-background", background=True)
    async def background(data, job: JobContext):
        job.progress(10)
        await asyncio.sleep(0.1)
        return data

    receiver = push_server(push)
    url = f"http://127.0.0.1:{receiver.server_port}/"
    for name in ("push-now", "push-later", "push-background"):
        target = {"target": {"url": url, "signing_secret": "old"}}
        client.request("PUT", f"/v1/job-types/{name}", target)
    job = client.enqueue("push-now", {"width": 5})
    assert job.result(10) == {"width": 10}
    assert client.log("push-now", job.id)[0]["text"] == "resized"
    with pytest.raises(JobFailed) as failed:
        client.enqueue("push-now", {"width": 1}).result(10)
    assert "too small" in failed.value.message
    snoozed = client.enqueue("push-now", {"width": 2})
    wait_until(lambda: snoozed.refresh().raw["history"])
    assert snoozed.refresh().raw["history"][0]["outcome"] == "snoozed"
    job = client.enqueue("push-later")
    callback = wait_until(lambda: kept and kept[0])
    assert callback.heartbeat(progress=40) is False
    type(callback)(**callback._asdict()).succeed({"late": True})
    assert job.result(10) == {"late": True}
    assert client.enqueue("push-background", 7).result(10) == 7
    assert push.join(5)
    assert push.handle("POST", {}, b"{}").status == 401
    receiver.shutdown()
    receiver.server_close()


def in_fastapi(push):
    app = FastAPI()
    app.mount("/jobs", push.asgi)
    client = TestClient(app)
    return lambda body, headers: client.post("/jobs/", content=body, headers=headers).status_code


def in_flask(push):
    app = flask.Flask("test")
    app.post("/jobs")(lambda: push.flask(flask.request))
    client = app.test_client()
    return lambda body, headers: client.post("/jobs", data=body, headers=headers).status_code


@pytest.mark.parametrize("framework", [in_fastapi, in_flask])
def test_a_push_in_a_framework_reports_later(shared_server, framework):
    client, kept = shared_server.client, []
    push = Push("s")
    name = framework.__name__.replace("_", "-")

    @push(f"film-{name}", background=True)
    async def film(image: Image, job: JobContext):
        job.log("began")
        await asyncio.sleep(0.1)
        return {"width": image.width * 2}

    @push(f"later-{name}")
    def later(_, job: PushJob):
        kept.append(job.callback)
        return Later()

    send = framework(push)
    for job_type in (f"film-{name}", f"later-{name}"):
        client.request("PUT", f"/v1/job-types/{job_type}", {})
        job = client.enqueue(job_type, {"width": 4})
        (lease,) = client.request("POST", "/v1/leases", {"types": [job_type]})["leases"]
        # What the server would push, with the token of the lease.
        callback = {"url": f"{client.url}/v1/jobs/{job_type}/{job.id}", "token": lease["token"]}
        fields = {field: lease["job"][field] for field in ("id", "type", "max_attempts", "data")}
        pushed = {**fields, "attempt": lease["attempt"], "attributes": {}, "callback": callback}
        body = json.dumps(pushed).encode()
        assert send(body, signed(body)) == 202
        if kept:
            assert job.refresh().state == "running"
            kept[0].snooze(until=shared_server.now() + timedelta(hours=1))
            wait_until(lambda job=job: job.refresh().state == "scheduled")
            assert job.refresh().raw["history"][0]["outcome"] == "snoozed"
        else:
            assert job.result(10) == {"width": 8}
            lines = wait_until(lambda job=job: client.log(job.type, job.id))
            assert [line["text"] for line in lines] == ["began"]
    assert push.join(5)


def test_attempts_are_let_go_before_their_leases_are_over(shared_server):
    worker = worker_of(shared_server)
    worker("echo", concurrency=5)(lambda data: data)
    shared_server.apply(worker)
    with worker:
        items = shared_server.client.enqueue_many([NewJob("echo", n) for n in range(100)])
        assert [item.job.result(20) for item in items] == list(range(100))
        gc.collect()
        # Each slot has its latest one at most, and some reports may be under way.
        assert sum(type(found).__name__ == "_Attempt" for found in gc.get_objects()) < 20


def test_a_handler_runs_in_place():
    def handler(letter: Letter, job: JobContext):
        return f"{letter.to} {job.attempt}"

    assert run_in_place(handler, Letter("ann"), attempt=2) == "ann 2"
