"""The agent of the conformance kit: it does with this client what the driver requests.

See clients/conformance/README.md for the requests.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import tidegate
from tidegate.testing import DevServer, run_in_place

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
client = tidegate.Client(timeout=float(os.environ.get("CONFORMANCE_CLIENT_TIMEOUT", "30")))
runs: list[dict[str, Any]] = []
callbacks: list[tidegate.Callback] = []
receivers: list[ThreadingHTTPServer] = []
held: dict[str, Any] = {}
lock = threading.Lock()
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def behave(data: Any, job: tidegate.JobContext[Any]) -> Any:
    """Do what the job's data says."""
    run = {"job": job.id, "attempt": job.attempt}
    with lock:
        runs.append(run)
    data = data or {}
    what, seconds = data.get("do", "echo"), data.get("seconds", 0)
    if what == "echo":
        return data.get("value")
    if what == "fail":
        raise RuntimeError(data["message"]) from ValueError(data.get("cause", "no cause"))
    if what == "crash":
        nothing: Any = None
        nothing.crash()
    if what == "permanent":
        raise tidegate.PermanentError(data["message"], data["details"])
    if what in ("snooze", "release"):
        if job.attempt > 1:
            return f"after {job.attempt} attempts"
        if what == "release":
            raise tidegate.Release
        if data.get("instant"):
            until = datetime.now(timezone.utc) + timedelta(seconds=seconds)
            raise tidegate.Snooze(until=until, message="not yet")
        raise tidegate.Snooze(seconds, "not yet")
    if what == "sleep":
        time.sleep(seconds)
        return "slept"
    if what == "until_aborted":
        if job.attempt > 1:
            return data["later"]
        try:
            for _ in range(120):
                if data.get("beats"):
                    job.progress(1)
                job.sleep(0.5)
        except tidegate.JobAborted as aborted:
            run["aborted"] = aborted.reason
            raise
    if what == "show":
        job.progress(40, "half")
        job.log("printed", "warn", pages=3)
        time.sleep(seconds)
        job.log("done")
        return "shown"
    if what == "checkpoint":
        if job.checkpoint is not None:
            return job.checkpoint
        job.save_checkpoint({"page": 40})
        raise RuntimeError("again")
    if what == "large":
        return "x" * data["bytes"]
    if what == "trace":
        client.enqueue(data["type"], id=data["child"])
        return job.traceparent
    raise tidegate.PermanentError(f"no behaviour {what}")


def config_of(request: dict[str, Any]) -> tidegate.Config:
    config, declared = tidegate.Config(), request["config"]
    for name, settings in declared.get("queues", {}).items():
        config.queue(name, **settings)
    for name, settings in declared.get("job_types", {}).items():
        config.job_type(name, **settings)
    for name, settings in declared.get("schedules", {}).items():
        config.schedule(name, **settings)
    for name, settings in declared.get("triggers", {}).items():
        config.trigger(name, **settings)
    return config


def shown(plan: tidegate.Plan) -> dict[str, Any]:
    steps = [
        {
            "action": step.action,
            "kind": step.kind,
            "name": step.name,
            "fields": [difference.field for difference in step.differences],
        }
        for step in plan.steps
    ]
    return {"text": str(plan), "steps": steps}


def job_of(job: tidegate.Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "type": job.type,
        "state": job.state,
        "phase": job.phase,
        "is_new": job.is_new,
    }


def worker_of(request: dict[str, Any]) -> tidegate.Worker:
    worker = tidegate.Worker(
        client, name=request.get("name"), wait_seconds=10, grace_seconds=request.get("grace")
    )
    options = {name: request[name] for name in ("auto", "min") if name in request}
    worker(*request["types"], concurrency=request.get("concurrency", 1), **options)(behave)
    held["worker"] = worker
    return worker


class Receiver(BaseHTTPRequestHandler):
    push: tidegate.Push

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        answer = self.push.handle("POST", dict(self.headers), body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    def log_message(self, *_: object) -> None:
        pass


def later(_: Any, job: tidegate.PushJob) -> tidegate.Later:
    callbacks.append(job.callback)
    return tidegate.Later()


def push_start(request: dict[str, Any]) -> dict[str, Any]:
    push = tidegate.Push(request["secrets"])
    push(*request["types"], background=request.get("background", False))(
        later if request.get("later") else behave
    )
    receiver = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("PushReceiver", (Receiver,), {"push": push})
    )
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    receivers.append(receiver)
    return {"port": receiver.server_port}


def verify(request: dict[str, Any]) -> bool:
    try:
        tidegate.verify(request["secrets"], request["headers"], request["body"].encode())
    except tidegate.TidegateError:
        return False
    return True


def forged(request: dict[str, Any]) -> int:
    try:
        url = f"http://127.0.0.1:{request['port']}/"
        urllib.request.urlopen(url, b'{"id": "x", "type": "resize"}', timeout=10)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def kit() -> dict[str, Any]:
    """Use the test kit as an application's test does."""
    with DevServer() as server:
        worker = tidegate.Worker(server.client)

        @worker(
            "reminder", config={"retry": {"strategy": "exponential", "config": {"base_seconds": 5}}}
        )
        def remind(to: Any, job: tidegate.JobContext[Any]) -> Any:
            if to == "bob" and job.attempt == 1:
                raise RuntimeError("no answer")
            return f"{to} {job.attempt}"

        def note(_: Any, job: tidegate.JobContext[Any]) -> Any:
            server.client.enqueue("reminder", "eve", id="noted", delay_seconds=604800)
            return {"attempt": job.attempt, "page": job.checkpoint["page"]}

        began = server.freeze()
        server.apply(worker)
        server.client.enqueue("reminder", "ann", delay_seconds=604800, priority=7)
        server.client.enqueue("reminder", "bob", delay_seconds=604800)
        enqueued = server.assert_enqueued("reminder", data="ann", priority=7, count=1)
        try:
            server.assert_enqueued("reminder", data="ann", priority=6)
            missing = "nothing"
        except AssertionError as error:
            missing = str(error)
        before = [run.status for run in server.drain(worker)]
        moved = (server.advance(days=7) - began).total_seconds()
        after = [run.status for run in server.drain(worker)]
        server.advance(60)
        retried = [run.status for run in server.drain(worker)]
        headers = {"traceparent": TRACE}
        noted = run_in_place(note, None, attempt=3, headers=headers, checkpoint={"page": 4})
        server.assert_enqueued("reminder", headers=headers, count=1)
        return {
            "enqueued": len(enqueued),
            "missing": missing,
            "before": before,
            "after": sorted(after, reverse=True),
            "retried": retried,
            "moved_seconds": moved,
            "in_place": run_in_place(remind, "ann", attempt=2),
            "noted": noted,
        }


def perform(op: str, request: dict[str, Any]) -> Any:
    """Return the answer to one request."""
    kind, job_id = request.get("type", ""), request.get("job", "")
    if op == "enqueue":
        return job_of(
            client.enqueue(
                kind,
                request.get("data"),
                idempotency_key=request.get("key"),
                **request.get("options", {}),
            )
        )
    if op == "enqueue_many":
        jobs = [
            tidegate.NewJob(job["type"], job.get("data"), **job.get("options", {}))
            for job in request.get("jobs", ())
        ]
        data = "x" * request["bytes"] if "bytes" in request else request.get("data")
        jobs += [tidegate.NewJob(kind, data)] * request.get("repeat", 0)
        items = client.enqueue_many(jobs, idempotency_key=request.get("key"))
        return [
            job_of(item.job) if item.job else {"code": item.error.code if item.error else None}
            for item in items
        ]
    if op == "job":
        return job_of(client.job(job_id))
    if op == "result":
        return client.result(kind, job_id, request["wait"])
    if op == "cancel":
        return job_of(client.cancel(kind, job_id))
    if op == "replay":
        return job_of(client.replay(kind, job_id))
    if op == "count":
        filters = {name: request[name] for name in ("type", "state") if name in request}
        return sum(1 for _ in client.jobs(limit=1000, **filters))
    if op == "attempts":
        return {"most": max(job.raw["attempt"] for job in client.jobs(type=kind))}
    if op == "log":
        return client.log(kind, job_id)
    if op == "send_event":
        return client.send_event(kind, request["source"], request["data"], id=request.get("event"))
    if op == "stream":
        with client.stream(job_type=kind) as stream:
            return [next(stream).name for _ in range(request["names"])]
    if op == "plan":
        return shown(client.plan(config_of(request), secrets=request.get("secrets", True)))
    if op == "apply":
        return shown(client.apply(config_of(request)))
    if op == "plan_hold":
        held["plan"] = client.plan(config_of(request))
        return None
    if op == "plan_apply":
        return held["plan"].apply()
    if op == "worker_start":
        return worker_of(request).start()
    if op == "worker_stop":
        held["worker"].stop()
        return held["worker"].join()
    if op == "worker_wait":
        return held["worker"].join()
    if op == "runs":
        return runs
    if op == "runs_count":
        return len(runs)
    if op == "sleep":
        return time.sleep(request["seconds"])
    if op == "verify":
        return verify(request)
    if op == "push_start":
        return push_start(request)
    if op == "push_stop":
        return [receiver.shutdown() for receiver in receivers] and None
    if op == "push_forged":
        return forged(request)
    if op == "callbacks":
        return [callback.url for callback in callbacks]
    if op == "callback_succeed":
        stored = json.loads(json.dumps(callbacks[0]._asdict()))
        return tidegate.Callback(**stored).succeed(request["result"])
    if op == "kit":
        return kit()
    raise ValueError(f"no such request: {op}")


KINDS = {
    tidegate.JobFailed: "job_failed",
    tidegate.WaitTimeout: "wait_timeout",
    tidegate.InvalidRequest: "invalid_request",
    tidegate.Unauthorized: "unauthorized",
    tidegate.Forbidden: "forbidden",
    tidegate.NotFound: "not_found",
    tidegate.Conflict: "conflict",
    tidegate.PreconditionFailed: "precondition_failed",
    tidegate.Unavailable: "unavailable",
    tidegate.ServerFault: "server_fault",
    tidegate.Unreachable: "unreachable",
}


def error_of(error: Exception) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": KINDS.get(type(error), type(error).__name__)}
    for name in ("code", "status", "field", "state", "reason", "message", "retry_after"):
        found[name] = getattr(error, name, None)
    return {**found, "text": str(error), "retryable": getattr(error, "retryable", None)}


def answer(request: dict[str, Any]) -> None:
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        reply["ok"] = perform(request["op"], request)
    except Exception as error:
        reply["error"] = error_of(error)
    with lock:
        print(json.dumps(reply), flush=True)


def main() -> None:
    """Answer requests until the input ends, or until a worker in this thread has stopped."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "worker_run":
            worker = worker_of(request)
            threading.Thread(target=read_on, daemon=True).start()
            worker.run()
            return
        threading.Thread(target=answer, args=(request,), daemon=True).start()


def read_on() -> None:
    for line in sys.stdin:
        threading.Thread(target=answer, args=(json.loads(line),), daemon=True).start()


if __name__ == "__main__":
    main()
