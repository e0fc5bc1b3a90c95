"""The fields that platforms know, where no package has a schema of them.

The lists are those of the platforms' references, as far as such a file may need them: the YAML of a
Cloud Run service, the configuration of a Fly.io app. The other files have real schemas.
"""

import tomllib

from . import want
from .files import CLOUD_RUN, FLY, document

# A value, whatever it is.
VALUE = None
PROBE = {
    "httpGet": {"path": VALUE, "port": VALUE, "httpHeaders": [{"name": VALUE, "value": VALUE}]},
    "tcpSocket": {"port": VALUE}, "grpc": {"port": VALUE, "service": VALUE},
    "initialDelaySeconds": VALUE, "timeoutSeconds": VALUE, "periodSeconds": VALUE, "failureThreshold": VALUE,
}
# Annotations of a service, and of a revision.
OF_SERVICE = (
    "launch-stage", "description", "ingress", "binary-authorization", "custom-audiences", "minScale", "maxScale",
    "invoker-iam-disabled", "iap-enabled", "scalingMode", "manualInstanceCount",
)
OF_REVISION = (
    "cpu-throttling", "startup-cpu-boost", "sessionAffinity", "execution-environment", "vpc-access-connector",
    "vpc-access-egress", "network-interfaces", "encryption-key", "secrets", "container-dependencies",
)
CLOUD_RUN_FIELDS = {
    "apiVersion": VALUE, "kind": VALUE,
    "metadata": {
        "name": VALUE, "namespace": VALUE, "labels": {"*": VALUE},
        "annotations": {f"run.googleapis.com/{name}": VALUE for name in OF_SERVICE},
    },
    "spec": {
        "template": {
            "metadata": {
                "name": VALUE, "labels": {"*": VALUE},
                "annotations": {f"run.googleapis.com/{name}": VALUE for name in OF_REVISION}
                | {f"autoscaling.knative.dev/{name}": VALUE for name in ("minScale", "maxScale")},
            },
            "spec": {
                "containerConcurrency": VALUE, "timeoutSeconds": VALUE, "serviceAccountName": VALUE,
                "containers": [{
                    "name": VALUE, "image": VALUE, "command": [VALUE], "args": [VALUE], "workingDir": VALUE,
                    "ports": [{"name": VALUE, "containerPort": VALUE}],
                    "env": [{
                        "name": VALUE, "value": VALUE, "valueFrom": {"secretKeyRef": {"name": VALUE, "key": VALUE}},
                    }],
                    "resources": {"limits": {"cpu": VALUE, "memory": VALUE}},
                    "startupProbe": PROBE, "livenessProbe": PROBE,
                    "volumeMounts": [{"name": VALUE, "mountPath": VALUE}],
                }],
                "volumes": [{"name": VALUE, "emptyDir": {"medium": VALUE, "sizeLimit": VALUE}}],
            },
        },
        "traffic": [{"revisionName": VALUE, "percent": VALUE, "latestRevision": VALUE, "tag": VALUE}],
    },
}
FLY_FIELDS = {
    "app": VALUE, "primary_region": VALUE, "kill_signal": VALUE, "kill_timeout": VALUE, "swap_size_mb": VALUE,
    "console_command": VALUE,
    "build": {"image": VALUE},
    "deploy": {"strategy": VALUE, "max_unavailable": VALUE, "wait_timeout": VALUE, "release_command": VALUE},
    "env": {"*": VALUE},
    "http_service": {
        "processes": [VALUE], "internal_port": VALUE, "force_https": VALUE, "auto_stop_machines": VALUE,
        "auto_start_machines": VALUE, "min_machines_running": VALUE,
        "concurrency": {"type": VALUE, "hard_limit": VALUE, "soft_limit": VALUE},
        "checks": [{
            "grace_period": VALUE, "interval": VALUE, "timeout": VALUE, "method": VALUE, "path": VALUE,
            "protocol": VALUE, "headers": {"*": VALUE},
        }],
    },
    "vm": [{"size": VALUE, "memory": VALUE, "cpus": VALUE, "cpu_kind": VALUE}],
}


def known(value, fields, path):
    """Fails at a field of `value` that is not in `fields`."""
    if fields is VALUE:
        want(not isinstance(value, (dict, list)), f"{path} is a single value")
    elif isinstance(fields, list):
        want(isinstance(value, list), f"{path} is a list")
        for index, item in enumerate(value):
            known(item, fields[0], f"{path}[{index}]")
    else:
        want(isinstance(value, dict), f"{path} has fields")
        for name, item in value.items():
            want(name in fields or "*" in fields, f"{path} has no field {name}")
            known(item, fields.get(name, fields.get("*")), f"{path}.{name}")


def check(root):
    """Cloud Run and Fly.io know each field."""
    service = document((root / CLOUD_RUN).read_text())
    kind = (service["apiVersion"], service["kind"])
    want(kind == ("serving.knative.dev/v1", "Service"), f"{CLOUD_RUN} is {kind}")
    known(service, CLOUD_RUN_FIELDS, CLOUD_RUN)
    for place in (service, service["spec"]["template"]):
        for name, value in place["metadata"]["annotations"].items():
            want(isinstance(value, str), f"{CLOUD_RUN}: the annotation {name} is a text")
    known(tomllib.loads((root / FLY).read_text()), FLY_FIELDS, FLY)
