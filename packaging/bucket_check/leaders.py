"""What each platform must be told so that one server leads, and that requests reach it."""

import json
import re

from . import want
from .files import (
    APP_HOURS, CLOUD_RUN, COMPOSE, CONTAINER_APPS, FARGATE, FLY, HOURS, KUBERNETES, document, one, with_hours,
)

S3_RIGHTS = {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"}


def values(file, found, wanted):
    """Fails where a value of `found` is not the one that is wanted, with the reason."""
    for name, (value, why) in wanted.items():
        want(found.get(name) == value, f"{file}: {name} is {found.get(name)!r} and not {value!r}: {why}")


def cloud_run(service):
    run = "run.googleapis.com/"
    values(CLOUD_RUN, service["metadata"]["annotations"], {
        run + "scalingMode": ("manual", "requests go to any instance"),
        run + "manualInstanceCount": ("1", "requests go to any instance"),
        run + "invoker-iam-disabled": ("true", "the token of tidegate is no token of Google"),
    })
    template = service["spec"]["template"]
    values(CLOUD_RUN, template["metadata"]["annotations"], {
        run + "cpu-throttling": ("false", "a leader without a CPU starts no job"),
    })
    probe = template["spec"]["containers"][0]["startupProbe"]
    seconds = probe["periodSeconds"] * probe["failureThreshold"]
    want(60 <= seconds <= 240, f"{CLOUD_RUN}: the startup probe takes {seconds} s, and Cloud Run allows 240")


def container_apps(app, hours):
    configuration, template = app["properties"]["configuration"], app["properties"]["template"]
    values(CONTAINER_APPS, configuration, {"activeRevisionsMode": ("Single", "a second revision would serve too")})
    values(CONTAINER_APPS, configuration["ingress"], {"allowInsecure": (False, "tokens would be sent in clear text")})
    values(CONTAINER_APPS, template["scale"], {
        "minReplicas": (2, "one leads, one follows"), "maxReplicas": (2, "one leads, one follows"),
        "rules": (None, "requests are no reason for more servers"),
    })
    scale = hours["properties"]["template"]["scale"]
    (rule,) = scale["rules"]
    counts = (scale["minReplicas"], scale["maxReplicas"], int(rule["custom"]["metadata"]["desiredReplicas"]))
    want(counts == (0, 2, 2) and rule["custom"]["type"] == "cron", f"{APP_HOURS} has the counts {counts}")
    for probe in template["containers"][0]["probes"]:
        want(1 <= probe.get("failureThreshold", 3) <= 10, f"{CONTAINER_APPS}: failureThreshold is from 1 to 10")
    identity = set(app["identity"]["userAssignedIdentities"])
    names = {secret["name"] for secret in configuration["secrets"]}
    for secret in configuration["secrets"]:
        want({secret["identity"]} == identity, f"{CONTAINER_APPS}: {secret['name']} is read by another identity")
    used = {env["secretRef"] for env in template["containers"][0]["env"] if "secretRef" in env}
    want(used == names, f"{CONTAINER_APPS}: secrets {used ^ names}")


def fly(app):
    values(FLY, app, {"kill_signal": ("SIGTERM", "the leader ends its part of the log")})
    values(FLY, app["deploy"], {"strategy": ("immediate", "the others wait until a standby is ready")})
    values(FLY, app["http_service"], {
        "auto_stop_machines": ("off", "the proxy would stop the standby"),
        "auto_start_machines": (False, "as auto_stop_machines"),
        "force_https": (True, "tokens would be sent in clear text"),
    })


def fargate(resources):
    service = resources["Service"]
    values(FARGATE, service, {"DesiredCount": (1, "ECS would replace a standby for ever")})
    values(FARGATE, service["DeploymentConfiguration"], {
        "MinimumHealthyPercent": (0, "the old task ends first"), "MaximumPercent": (100, "the old task ends first"),
    })
    want(service.get("HealthCheckGracePeriodSeconds", 0) >= 60, f"{FARGATE}: a start reads the log first")
    values(FARGATE, resources["Listener"], {
        "Protocol": ("HTTPS", "the server refuses what reached a proxy without TLS"),
    })

    (policy,) = resources["TaskRole"]["Policies"]
    bucket = {"Fn::GetAtt": "Bucket.Arn"}
    actions = {}
    for statement in policy["PolicyDocument"]["Statement"]:
        granted = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        want("Condition" not in statement, f"{FARGATE}: with a condition, S3 answers 403 for an absent object")
        actions |= dict.fromkeys(granted, statement["Resource"])
    want(actions.keys() == S3_RIGHTS, f"{FARGATE}: the rights {actions.keys() ^ S3_RIGHTS}")
    (container,) = resources["Task"]["ContainerDefinitions"]
    log = one(container["Environment"], FARGATE, Name="TIDEGATE_LOG")["Value"]["Fn::Sub"]
    objects = {"Fn::Sub": "${Bucket.Arn}/" + log.removeprefix("s3://${Bucket}/") + "/*"}
    for action, resource in actions.items():
        wanted = bucket if action == "s3:ListBucket" else objects
        want(resource == wanted, f"{FARGATE}: {action} is for {resource} and not for {wanted}")
    secrets = {json.dumps(secret["ValueFrom"]) for secret in container["Secrets"]}
    (start,) = resources["ExecutionRole"]["Policies"]
    readable = one(start["PolicyDocument"]["Statement"], FARGATE, Action="ssm:GetParameters")["Resource"]
    want({json.dumps(resource) for resource in readable} == secrets, f"{FARGATE}: the role reads other parameters")

    for name, count in (("StartSchedule", 1), ("StopSchedule", 0)):
        target = resources[name]["Target"]
        given = json.loads(re.sub(r"\$\{[^}]+\}", "x", target["Input"]["Fn::Sub"]))
        want(given == {"Cluster": "x", "Service": "x", "DesiredCount": count}, f"{FARGATE}: {name} sends {given}")
        call = target["Arn"]["Fn::Sub"]
        want(call.endswith("aws-sdk:ecs:updateService"), f"{FARGATE}: {name} calls {call}")


def kubernetes(manifests, hours):
    stateful_set = one(manifests, KUBERNETES, kind="StatefulSet")
    name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
    values(KUBERNETES, spec, {
        "replicas": (2, "one leads, one follows"),
        "podManagementPolicy": ("Parallel", "a standby is never ready"),
        "updateStrategy": ({"type": "OnDelete"}, "a standby is never ready"),
        "volumeClaimTemplates": (None, "the bucket has the data"),
    })
    pod = spec["template"]
    data = one(pod["spec"]["volumes"], KUBERNETES, name="data")
    want("emptyDir" in data, f"{KUBERNETES}: the data directory is not an emptyDir")
    labels = pod["metadata"]["labels"]
    leader, servers = (part for part in manifests if part["kind"] == "Service")
    values(KUBERNETES, leader["spec"], {
        "publishNotReadyAddresses": (None, "only the leader is ready"),
        "clusterIP": (None, "clients have one address"),
    })
    values(KUBERNETES, servers["spec"], {
        "publishNotReadyAddresses": (True, "a standby has a name too"), "clusterIP": ("None", "each pod has a name"),
    })
    want(spec["serviceName"] == servers["metadata"]["name"], f"{KUBERNETES}: serviceName is not that of the pods")
    url = one(pod["spec"]["containers"][0]["env"], KUBERNETES, name="TIDEGATE_PUBLIC_URL")["value"]
    (port,) = leader["spec"]["ports"]
    want(url == f"http://{leader['metadata']['name']}:{port['port']}", f"{KUBERNETES}: public_url is {url}")
    budget = one(manifests, KUBERNETES, kind="PodDisruptionBudget")["spec"]
    values(KUBERNETES, budget, {
        "minAvailable": (1, "the leader is the one ready pod"), "maxUnavailable": (None, "a standby is unavailable"),
        "unhealthyPodEvictionPolicy": ("AlwaysAllow", "a standby may be evicted"),
    })
    policy = one(manifests, KUBERNETES, kind="NetworkPolicy")["spec"]
    selectors = [leader["spec"]["selector"], servers["spec"]["selector"]]
    selectors += [by["matchLabels"] for by in (spec["selector"], budget["selector"], policy["podSelector"])]
    for selector in selectors:
        want(selector == labels, f"{KUBERNETES}: {selector} selects other pods than {labels}")
    ready = pod["spec"]["containers"][0]["readinessProbe"]
    seconds = ready["periodSeconds"] * ready["failureThreshold"]
    want(seconds <= 5, f"{KUBERNETES}: a leader that was replaced is ready for {seconds} s")
    target = hours["spec"]["scaleTargetRef"]
    want((target["kind"], target["name"]) == ("StatefulSet", name), f"{HOURS} scales {target}")
    (trigger,) = hours["spec"]["triggers"]
    hours = hours["spec"]
    counts = (hours["minReplicaCount"], hours["maxReplicaCount"], int(trigger["metadata"]["desiredReplicas"]))
    want(counts == (0, spec["replicas"], spec["replicas"]), f"{HOURS} has the counts {counts}")


def compose(example):
    servers = {name for name in example["services"] if name.startswith("tidegate")}
    want(len(servers) == 2, f"{COMPOSE} has the servers {servers}")
    for name in servers:
        values(COMPOSE, example["services"][name], {"restart": ("always", "a process leads at most once")})
    config = example["configs"]["proxy"]["content"]
    backends = set(re.findall(r"^ *server \w+ ([^:]+):", config, re.MULTILINE))
    want(backends == servers, f"{COMPOSE}: the proxy knows {backends} and not {servers}")
    for line in ("option httpchk", "http-check expect status 200"):
        want(line in config, f"{COMPOSE}: the proxy lacks `{line}`")
    want(re.search(r"default-server check inter \d+ms fall 1 ", config), f"{COMPOSE}: the proxy checks too seldom")
    bucket = example["services"]["bucket"]
    for name in ("bucket", "proxy"):
        image, _, tag = example["services"][name]["image"].partition(":")
        want(tag not in ("", "latest"), f"{COMPOSE}: {image} is not pinned")
    made = re.search(r"mkdir -p /data/(\S+) ", " ".join(bucket["entrypoint"]))
    env = example["services"]["tidegate-a"]["environment"]
    want(made and env["TIDEGATE_LOG"].startswith(f"s3://{made[1]}/"), f"{COMPOSE}: the bucket of the log is not made")
    account = bucket["environment"]
    key = (env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"])
    made = (account["MINIO_ROOT_USER"], account["MINIO_ROOT_PASSWORD"])
    want(key == made, f"{COMPOSE}: the bucket has another key")


def check(root, servers):
    cloud_run(servers[CLOUD_RUN].document)
    container_apps(servers[CONTAINER_APPS].document, with_hours(root))
    fly(servers[FLY].document)
    fargate(servers[FARGATE].document)
    kubernetes(servers[KUBERNETES].document, document((root / HOURS).read_text()))
    compose(servers[COMPOSE].document)
