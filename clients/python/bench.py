"""Compares this client's requests per second with those of plain ``http.client``.

    TIDEGATE_URL=... python bench.py [SECONDS]

Both enqueue the same jobs with an ``Idempotency-Key``, and take turns with each request. The
slowest twentieth of each is left out. The exit code is 1 if the client has less than 80 %. The jobs
are then run by a worker.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from urllib.parse import urlsplit

import tidegate

SECONDS = float(sys.argv[1]) if len(sys.argv) > 1 else 8.0
URL = os.environ["TIDEGATE_URL"]
DATA = {"to": "ann@example.com", "pages": 3}
client = tidegate.Client(URL)


def plain() -> Callable[[], None]:
    parts = urlsplit(URL)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)

    def enqueue() -> None:
        body = json.dumps({"type": "bench", "data": DATA}).encode()
        headers = {"content-type": "application/json", "idempotency-key": uuid.uuid4().hex}
        connection.request("POST", "/v1/jobs", body, headers)
        answer = connection.getresponse()
        job = json.loads(answer.read())
        if answer.status != 201 or not job["id"]:
            raise RuntimeError(job)

    return enqueue


def ours() -> Callable[[], None]:
    def enqueue() -> None:
        if not client.enqueue("bench", DATA).is_new:
            raise RuntimeError("the job is not new")

    return enqueue


def rates(callers: int) -> tuple[float, float]:
    """Return the requests per second of both, by the mean time of a request."""
    took: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + SECONDS

    def call() -> None:
        calls = (plain(), ours())
        while time.perf_counter() < end:
            for enqueue, times in zip(calls, took, strict=True):
                began = time.perf_counter()
                enqueue()
                times.append(time.perf_counter() - began)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [sorted(times)[: len(times) * 19 // 20] for times in took]
    other, own = (callers * len(times) / sum(times) for times in kept)
    return other, own


def main() -> None:
    client.request("PUT", "/v1/job-types/bench", {})
    worst = 1.0
    for callers in (1, 8):
        other, own = rates(callers)
        worst = min(worst, own / other)
        print(
            f"python      {callers} callers: http.client {other:6.0f}/s, "
            f"tidegate {own:6.0f}/s, {100 * own / other:.0f} %",
            flush=True,
        )
    jobs = 2000
    client.request("PUT", "/v1/job-types/bench-run", {})
    client.enqueue_many([tidegate.NewJob("bench-run", DATA)] * jobs)
    worker, left, done = tidegate.Worker(client), [jobs], threading.Event()

    @worker("bench-run", concurrency=50)
    def run(_: object) -> None:
        left[0] -= 1
        if left[0] == 0:
            done.set()

    began = time.perf_counter()
    with worker:
        done.wait(120)
    print(f"python      worker: {jobs / (time.perf_counter() - began):.0f} jobs/s")
    sys.exit(1 if worst < 0.8 else 0)


if __name__ == "__main__":
    main()
