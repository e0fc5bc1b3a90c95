"""Enqueues, leases and reports with the client that openapi-python-client generated.

Usage: session.py URL
"""

import importlib
import pkgutil
import sys

import client as generated
from client import Client
from client.api.job_types import put_job_type
from client.api.jobs import enqueue, get_result
from client.api.queues import put_queue
from client.api.workers import lease, report
from client.models.constraint import Constraint
from client.models.lease_request import LeaseRequest
from client.models.matcher import Matcher
from client.models.new_job import NewJob
from client.models.new_job_attributes_type_0 import NewJobAttributesType0
from client.models.queue_config import QueueConfig
from client.models.report import Report
from client.models.status import Status
from client.models.type_config import TypeConfig

for module in pkgutil.walk_packages(generated.__path__, "client."):
    importlib.import_module(module.name)

server = Client(base_url=sys.argv[1], raise_on_unexpected_status=True)
limit = Constraint(name="one", match=Matcher(type_=["python", "other"]), concurrency=5)
queue = put_queue.sync("python", client=server, body=QueueConfig(concurrency=3, constraints=[limit]))
assert queue.name == "python" and queue.constraints[0].name == "one", queue
kind = put_job_type.sync("python", client=server, body=TypeConfig(queue="python"))
assert kind.queue == "python" and not kind.target, kind
attributes = NewJobAttributesType0.from_dict({"region": "east"})
body = NewJob(type_="python", data={"n": [1, None]}, attributes=attributes, priority=7)
job = enqueue.sync(client=server, body=body, idempotency_key="python-1")
assert job.state == "scheduled" and job.priority == 7, job
assert enqueue.sync(client=server, body=body, idempotency_key="python-1").id == job.id
leases = lease.sync(client=server, body=LeaseRequest(types=["python"], wait_seconds=20)).leases
assert [one.job.id for one in leases] == [job.id], leases
done = Report(status=Status.SUCCEEDED, attempt=leases[0].attempt, result={"sum": 3})
assert report.sync("python", job.id, client=server, body=done).state == "succeeded"
assert get_result.sync("python", job.id, client=server) == {"sum": 3}
print("python: enqueued, leased, reported", job.id)
