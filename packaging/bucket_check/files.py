"""The files of packaging/bucket, each read into a `Server`."""

import functools
import re
import tomllib
from dataclasses import dataclass, field

import yaml

from . import want

CLOUD_RUN = "packaging/bucket/cloud-run/service.yaml"
CONTAINER_APPS = "packaging/bucket/container-apps/app.yaml"
APP_HOURS = "packaging/bucket/container-apps/hours.yaml"
FLY = "packaging/bucket/fly/fly.toml"
FARGATE = "packaging/bucket/fargate/template.yaml"
KUBERNETES = "packaging/bucket/kubernetes/tidegate.yaml"
HOURS = "packaging/bucket/kubernetes/keda/hours.yaml"
COMPOSE = "packaging/bucket/compose.bucket.yaml"
FILES = (CLOUD_RUN, CONTAINER_APPS, APP_HOURS, FLY, FARGATE, KUBERNETES, HOURS, COMPOSE)

# How long Cloud Run lets an instance run after SIGTERM. It cannot be set.
CLOUD_RUN_GRACE = 10
# The values that stand in for variables, and for the parameters of the stack.
SAMPLES = {
    "PROJECT": "project", "BUCKET": "bucket", "URL": "https://queue.example.com", "LOCATION": "westeurope",
    "IDENTITY_ID": "/subscriptions/1", "CLIENT_ID": "client", "ENVIRONMENT_ID": "/subscriptions/1/env",
    "VAULT": "vault", "ACCOUNT": "account", "TIDEGATE_LOG": "s3://bucket/prefix", "Bucket": "bucket",
    "PublicUrl": "https://queue.example.com", "AWS::Region": "eu-west-1",
}


@dataclass(frozen=True)
class Secret:
    """A value that the platform takes from its store of secrets."""

    source: str


@dataclass
class Server:
    """One container with tidegate, in the words of no platform."""

    file: str
    image: str
    env: dict
    port: int
    # How many run at once.
    count: int
    # How long it may run after SIGTERM, in seconds.
    grace: int
    # The paths that decide: "startup", "ready", "live".
    probes: dict
    args: tuple = ()
    mounts: tuple = ()
    user: int | None = None
    document: object = field(default=None, repr=False)


class Cloudformation(yaml.SafeLoader):
    """Reads `!Ref A` as {"Ref": "A"}, and so on."""


def short_form(loader, suffix, node):
    value = node.value
    if isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    return {suffix if suffix == "Ref" else f"Fn::{suffix}": value}


Cloudformation.add_multi_constructor("!", short_form)


# Checks of planted faults read most files many times.
@functools.cache
def documents(text, loader=yaml.SafeLoader):
    """The documents of a text."""
    return [document for document in yaml.load_all(text, loader) if document]


def document(text, loader=yaml.SafeLoader):
    """The only document of a text."""
    (only,) = documents(text, loader)
    return only


def variables(text):
    """The names that envsubst replaces in `text`."""
    return set(re.findall(r"\$\{(\w+)(?::\?)?\}", text))


def filled(value):
    """`value` with a sample for each variable and parameter."""
    if isinstance(value, dict) and value.keys() == {"Ref"}:
        value = "${" + value["Ref"] + "}"
    elif isinstance(value, dict) and value.keys() == {"Fn::Sub"}:
        value = value["Fn::Sub"]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$\{([\w:]+)\}", lambda name: SAMPLES.get(name[1], name[0]), value)


def one(items, what, **wanted):
    """The only item with these values."""
    found = [item for item in items if all(item.get(key) == value for key, value in wanted.items())]
    want(len(found) == 1, f"{what}: {len(found)} of {wanted} instead of one")
    return found[0]


def pairs(items, name="name", value="value"):
    """The environment of a list of objects; a value from a store of secrets is a `Secret`."""
    env = {}
    for item in items:
        want(item[name] not in env, f"{item[name]} is there twice")
        if value in item:
            env[item[name]] = filled(item[value])
        else:
            source = item.get("secretRef") or item.get("ValueFrom") or item["valueFrom"]["secretKeyRef"]["name"]
            env[item[name]] = Secret(str(source))
    return env


def http_path(probe, port):
    get = probe["httpGet"]
    want(get["port"] in (port, "http"), f"a probe calls port {get['port']} instead of {port}")
    return get["path"]


def cloud_run(text):
    service = document(text)
    spec = service["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    (port,) = container["ports"]
    port = port["containerPort"]
    probes = {name: http_path(container[key], port) for name, key in
              (("startup", "startupProbe"), ("live", "livenessProbe"))}
    count = int(service["metadata"]["annotations"]["run.googleapis.com/manualInstanceCount"])
    return Server(
        CLOUD_RUN, container["image"], pairs(container["env"]), port, count, CLOUD_RUN_GRACE, probes,
        tuple(container.get("args", ())), document=service,
    )


def container_apps(text):
    app = document(text)
    template = app["properties"]["template"]
    (container,) = template["containers"]
    port = app["properties"]["configuration"]["ingress"]["targetPort"]
    names = {"Startup": "startup", "Readiness": "ready", "Liveness": "live"}
    probes = {names[probe["type"]]: http_path(probe, port) for probe in container["probes"]}
    return Server(
        CONTAINER_APPS, container["image"], pairs(container["env"]), port, template["scale"]["maxReplicas"],
        template["terminationGracePeriodSeconds"], probes, tuple(container.get("args", ())), document=app,
    )


def with_hours(root):
    """The container app whose `scale` is replaced, as its page does."""
    app, found, _ = (root / CONTAINER_APPS).read_text().partition("\n    scale:\n")
    want(found, f"{CONTAINER_APPS} has no scale in its template")
    return document(f"{app}\n{(root / APP_HOURS).read_text()}")


def fly(text):
    app = tomllib.loads(text)
    service = app["http_service"]
    (check,) = service["checks"]
    # The secrets are set by commands: the page has them.
    secrets = {name: Secret("fly secrets set") for name in ("TIDEGATE_ENCRYPTION_KEY", "TIDEGATE_ADMIN_TOKEN")}
    clash = secrets.keys() & app["env"].keys()
    want(not clash, f"{clash} must be secrets")
    return Server(
        FLY, app["build"]["image"], app["env"] | secrets, service["internal_port"], 2,
        app["kill_timeout"], {"ready": check["path"]}, document=app,
    )


def fargate(text):
    template = document(text, Cloudformation)
    resources = {name: one["Properties"] for name, one in template["Resources"].items() if "Properties" in one}
    (container,) = resources["Task"]["ContainerDefinitions"]
    (mapping,) = container["PortMappings"]
    port = mapping["ContainerPort"]
    env = pairs(container["Environment"], "Name", "Value") | pairs(container["Secrets"], "Name", "Value")
    targets = resources["Targets"]
    want(targets["Port"] == port, f"the target group has port {targets['Port']}")
    return Server(
        FARGATE, template["Parameters"]["Image"]["Default"], env, port, resources["Service"]["DesiredCount"],
        container["StopTimeout"], {"ready": targets["HealthCheckPath"]}, tuple(container.get("Command", ())),
        document=resources,
    )


def kubernetes(text):
    manifests = documents(text)
    stateful_set = one(manifests, KUBERNETES, kind="StatefulSet")["spec"]
    pod = stateful_set["template"]["spec"]
    (container,) = pod["containers"]
    (port,) = container["ports"]
    port = port["containerPort"]
    probes = {name: http_path(container[key], port) for name, key in
              (("startup", "startupProbe"), ("ready", "readinessProbe"), ("live", "livenessProbe"))}
    return Server(
        KUBERNETES, container["image"], pairs(container["env"]), port, stateful_set["replicas"],
        pod["terminationGracePeriodSeconds"], probes, tuple(container.get("args", ())),
        tuple(mount["mountPath"] for mount in container["volumeMounts"]), pod["securityContext"]["runAsUser"],
        manifests,
    )


def compose(text):
    example = document(text)
    servers = {name: service for name, service in example["services"].items() if name.startswith("tidegate")}
    (first, *others) = servers.values()
    want(all(other == first for other in others), f"{COMPOSE}: the servers differ")
    env = {name: Secret(value) if value.endswith(":?}") else value for name, value in first["environment"].items()}
    config = example["configs"]["proxy"]["content"]
    path = re.search(r"http-check send meth GET uri (\S+)", config)
    ports = set(re.findall(r"^ *server \w+ \S+:(\d+)$", config, re.MULTILINE))
    want(path and len(ports) == 1, f"{COMPOSE}: the proxy has no health check, or no port")
    data = first["tmpfs"][0]
    user = re.search(r"uid=(\d+)", data)
    return Server(
        COMPOSE, first["image"], env, int(ports.pop()), len(servers), int(first["stop_grace_period"].rstrip("s")),
        {"ready": path[1]}, tuple(first.get("command", ())), (data.split(":")[0], *first["tmpfs"][1:]),
        int(user[1]) if user else None, example,
    )


READERS = {
    CLOUD_RUN: cloud_run, CONTAINER_APPS: container_apps, FLY: fly, FARGATE: fargate, KUBERNETES: kubernetes,
    COMPOSE: compose,
}


def read(root):
    """Every server, by its file."""
    return {file: reader((root / file).read_text()) for file, reader in READERS.items()}
