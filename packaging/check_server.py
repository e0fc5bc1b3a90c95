"""Compares the files of packaging/ with a running server:  check_server.py waiting|finished

TIDEGATE_URL has three jobs in the queue `mail`. First, `waiting`, none has run: the probes answer, and
KEDA finds a number. Then, `finished`, a worker runs them: the metrics of boards and alerts have the labels
that they use.
"""

import json
import os
import re
import sys
import time
import urllib.request
from pathlib import Path

import yaml

HERE = Path(__file__).parent
URL = os.environ["TIDEGATE_URL"]
TOKEN = os.environ["TIDEGATE_TOKEN"]
# Metrics that a server has only on Postgres, or after plugins, events or refused connections.
RARE = re.compile(r"tidegate_(inbox|postgres|plugin|events|connections_refused|accept_errors)_?")


def get(path, token=None):
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with urllib.request.urlopen(urllib.request.Request(URL + path, headers=headers)) as answer:
        return answer.read().decode()


def documents(path):
    return list(yaml.safe_load_all((HERE / path).read_text()))


def probes():
    """The probes need no token."""
    for document in documents("kubernetes/tidegate.yaml"):
        if document["kind"] == "StatefulSet":
            container = document["spec"]["template"]["spec"]["containers"][0]
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                get(container[probe]["httpGet"]["path"])


def keda():
    """The paths in the answer lead to numbers; the desired workers are not 0 while jobs are due."""
    for document in documents("kubernetes/keda/scaled-worker.yaml"):
        if document["kind"] == "ScaledObject":
            least = [1, 0]
            for trigger, fewest in zip(document["spec"]["triggers"], least, strict=True):
                metadata = trigger["metadata"]
                path = metadata["url"].split(":8080", 1)[1]
                value = json.loads(get(path, TOKEN))
                for key in metadata["valueLocation"].split("."):
                    value = value[key]
                assert isinstance(value, int) and value >= fewest, value


def used():
    """The metrics of boards and alerts, each with the labels that its expressions name."""
    found = {}
    board = json.loads((HERE / "compose/grafana/tidegate.json").read_text())
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    for group in documents("compose/alerts.yml")[0]["groups"]:
        texts += [rule["expr"] for rule in group["rules"]]
    for text in texts:
        grouped = {label for names in re.findall(r"by \(([^)]*)\)", text) for label in names.split(", ")}
        for name, labels in re.findall(r"(tidegate_\w+)(?:\{([^}]*)\})?", text):
            found.setdefault(name, set()).update(grouped, re.findall(r"(\w+)=", labels))
    return found


def served(wanted):
    """The labels of each metric, once all that are wanted are there."""
    deadline = time.monotonic() + 30
    while True:
        there = {}
        for line in get("/metrics", TOKEN).splitlines():
            if line and not line.startswith("#"):
                name, labels = re.match(r"(\w+)(?:\{(.*)\})?", line).groups()
                there.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
        missing = wanted - there.keys()
        if not missing:
            return there
        assert time.monotonic() < deadline, f"the server has no {missing}"
        time.sleep(0.2)


def metrics():
    """Every metric exists with its labels, once the jobs are done."""
    wanted = used()
    assert len(wanted) > 15, wanted
    there = served({name for name in wanted if not RARE.match(name)})
    for name, labels in wanted.items():
        if name in there:
            assert labels <= there[name], f"{name} has no label {labels - there[name]}"


if sys.argv[1] == "waiting":
    probes()
    keda()
    # The server reads it every two seconds, and the jobs are soon done.
    served({"tidegate_oldest_due_job_age_seconds"})
else:
    metrics()
