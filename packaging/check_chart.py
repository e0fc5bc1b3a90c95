"""Lints, renders and validates the Helm chart:  check_chart.py CHART [HELM]

CHART is the folder or the archive of the chart. HELM is the program; without it, this uses Helm's own
library, which a Python package has.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import kubernetes_validate
import yaml

CHART = sys.argv[1]
HELM = sys.argv[2] if len(sys.argv) > 2 else None
PLAIN = Path(__file__).parent / "kubernetes/tidegate.yaml"
# Kinds that are not of Kubernetes itself, so that it has no schema of them.
FOREIGN = {"ServiceMonitor"}


def run(*args):
    done = subprocess.run([HELM, *args], capture_output=True, text=True)
    assert done.returncode == 0, f"helm {args}: {done.stdout}{done.stderr}"
    return done.stdout


def lint():
    if HELM:
        run("lint", "--strict", CHART)
        return
    from helm_python.chart import lint as lint_chart

    report = lint_chart(CHART, strict=True)
    # 1 is information, such as a missing icon.
    bad = [message for message in report["messages"] if message["severity"] > 1]
    assert report["total_charts_linted"] == 1 and not bad and not report["errors"], report


def rendered(values):
    """The documents of the chart with these values, by their kind."""
    if HELM:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write(json.dumps(values))
            file.flush()
            text = run("template", "tidegate", CHART, "--namespace", "jobs", "--values", file.name)
    else:
        from helm_python.chart import Chart

        path = Path(CHART)
        chart = Chart.load(CHART) if path.is_dir() else Chart.load_archive(path.read_bytes())
        files = chart.render(values, name="tidegate", namespace="jobs")
        text = "\n---\n".join(text for name, text in files.items() if name.endswith(".yaml"))
        notes = next(text for name, text in files.items() if name.endswith("NOTES.txt"))
        assert "http://tidegate:8080" in notes and "{{" not in notes, notes
    documents = [document for document in yaml.safe_load_all(text) if document]
    for document in documents:
        if document["kind"] not in FOREIGN:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    by_kind = {document["kind"]: document for document in documents}
    assert len(by_kind) == len(documents), "two documents of one kind"
    return by_kind


def settings(documents):
    return tomllib.loads(documents["ConfigMap"]["data"]["tidegate.toml"])


def pod(documents):
    return documents["StatefulSet"]["spec"]["template"]


def container(documents):
    return pod(documents)["spec"]["containers"][0]


def env(documents):
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container(documents)["env"]}


lint()
default = rendered({})
assert settings(default) == {"log_format": "json"}, settings(default)
assert env(default) == {
    "TIDEGATE_LISTEN": "0.0.0.0:8080",
    "TIDEGATE_DATA": "/data",
    "TIDEGATE_PUBLIC_URL": "http://tidegate:8080",
    "TIDEGATE_ADMIN_TOKEN": {"secretKeyRef": {"name": "tidegate", "key": "admin-token"}},
}, env(default)

all_set = rendered(
    {
        "publicUrl": "https://queue.example.com",
        "settings": "push_slots = 20\n[console]\ntitle = 'Jobs'\n",
        "image": {"tag": "1.2.3", "pullSecrets": [{"name": "registry"}]},
        "env": [{"name": "TIDEGATE_LOG_LEVEL", "value": "debug"}],
        "extraVolumes": [{"name": "backup", "persistentVolumeClaim": {"claimName": "backup"}}],
        "extraVolumeMounts": [{"name": "backup", "mountPath": "/backup"}],
        "storage": {"className": "fast", "accessMode": "ReadWriteOnce"},
        "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "cert", "annotations": {"a": "b"}},
        "networkPolicy": {"extraFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podAnnotations": {"a": "b"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "jobs", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    }
)
assert settings(all_set) == {"push_slots": 20, "console": {"title": "Jobs"}}, settings(all_set)
assert env(all_set)["TIDEGATE_PUBLIC_URL"] == "https://queue.example.com"
assert env(all_set)["TIDEGATE_LOG_LEVEL"] == "debug"
assert container(all_set)["image"].endswith("/tidegate:1.2.3")
assert container(all_set)["volumeMounts"][-1]["mountPath"] == "/backup"
assert all_set["Ingress"]["spec"]["tls"][0]["secretName"] == "cert"
assert len(all_set["NetworkPolicy"]["spec"]["ingress"][0]["from"]) == 2
assert all_set["ServiceMonitor"]["spec"]["endpoints"][0]["path"] == "/metrics"
checksum = "checksum/settings"
assert pod(all_set)["metadata"]["annotations"][checksum] != pod(default)["metadata"]["annotations"][checksum]

little = rendered(
    {"adminToken": {"secret": ""}, "networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}}
)
assert "TIDEGATE_ADMIN_TOKEN" not in env(little)
assert not {"NetworkPolicy", "PodDisruptionBudget", "Ingress", "ServiceMonitor"} & little.keys()

# The plain manifests have the same parts.
plain = {document["kind"]: document for document in yaml.safe_load_all(PLAIN.read_text())}
assert plain.keys() == default.keys(), plain.keys() ^ default.keys()
same = ("startupProbe", "readinessProbe", "livenessProbe", "args", "securityContext", "volumeMounts", "resources")
for part in same:
    assert container(plain)[part] == container(default)[part], part
assert pod(plain)["spec"]["securityContext"] == pod(default)["spec"]["securityContext"]
print("the chart renders, and what it renders is valid")
