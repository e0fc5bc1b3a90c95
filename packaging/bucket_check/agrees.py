"""What every server must agree on with the program."""

from . import want
from .files import CLOUD_RUN, COMPOSE, CONTAINER_APPS, FARGATE, FLY, KUBERNETES, SAMPLES, Secret, filled
from .program import KEY, TOKEN

# The variables that the client of the bucket reads (crate object_store), as far as they are used here.
BUCKET_VARIABLES = {
    "AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
    "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_CLIENT_ID",
}
# The scheme of each log, and the variables without which its bucket cannot be reached.
BUCKETS = {
    CLOUD_RUN: ("gs", set()),
    CONTAINER_APPS: ("az", {"AZURE_STORAGE_ACCOUNT_NAME", "AZURE_CLIENT_ID"}),
    FLY: ("s3", {"AWS_REGION"}),
    FARGATE: ("s3", {"AWS_REGION"}),
    KUBERNETES: ("s3", set()),
    COMPOSE: ("s3", {"AWS_REGION", "AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}),
}
# Settings that no file may have in clear text, each with a valid value.
SECRETS = {"TIDEGATE_ENCRYPTION_KEY": KEY, "TIDEGATE_ADMIN_TOKEN": TOKEN}


def effective(server, program):
    """The settings that the program reads from this environment."""
    env = {}
    for name, value in server.env.items():
        if isinstance(value, Secret):
            env[name] = SECRETS.get(name, "secret")
        else:
            want(isinstance(value, str), f"{server.file}: {name} is not a text")
            env[name] = filled(value)
            want("${" not in env[name], f"{server.file}: {name} has a variable that is not in {sorted(SAMPLES)}")
    args = server.args or ("--listen", program.listen, "--data", program.data)
    settings, problem = program.effective(args, env)
    want(settings, f"{server.file}: the program refuses its settings: {problem}")
    return settings


def check_one(server, program):
    file = server.file
    image = f"tidegate/tidegate:{program.version}"
    want(server.image.removeprefix("docker.io/") == image, f"{file} has the image {server.image} and not {image}")
    flags = {arg.split("=")[0] for arg in server.args if arg.startswith("-")}
    want(flags <= program.flags, f"{file} has flags that the program lacks: {flags - program.flags}")
    for name, value in server.env.items():
        if name.startswith("TIDEGATE_"):
            want(name in program.variables and name in program.documented, f"{file}: {name} is no setting")
        else:
            want(name in BUCKET_VARIABLES, f"{file}: nothing reads {name}")
        want(name not in SECRETS or isinstance(value, Secret), f"{file}: {name} is in clear text")
    want(SECRETS.keys() <= server.env.keys(), f"{file} lacks {SECRETS.keys() - server.env.keys()}")
    scheme, needed = BUCKETS[file]
    want(needed <= server.env.keys(), f"{file} lacks {needed - server.env.keys()}")

    settings = effective(server, program)
    want(settings["log"].startswith(f"{scheme}://"), f"{file} has the log {settings['log']}")
    want(settings["listen"] == program.listen, f"{file} listens on {settings['listen']}")
    want(settings["data"] == program.data, f"{file} has the data directory {settings['data']}")
    standby = settings["standby"]
    want(standby == (server.count > 1), f"{file}: {server.count} servers, and standby is {standby}")
    want(settings.get("public_url"), f"{file} has no public_url")
    stop = settings["shutdown_seconds"] + program.seal_seconds
    want(stop < server.grace, f"{file}: a stop takes up to {stop} s, and the platform kills after {server.grace} s")

    want(server.port == program.port, f"{file} has port {server.port}, and the image {program.port}")
    # Only this one may depend on who leads, unless there is one server.
    deciding = "ready" if "ready" in server.probes else "startup"
    for name, path in server.probes.items():
        wanted = program.ready if name == deciding else program.alive
        want(path == wanted, f"{file}: the {name} probe is {path} and not {wanted}")
    want(deciding in server.probes, f"{file} has no probe that finds the leader")
    want(server.count == 1 or deciding == "ready", f"{file}: a standby needs a readiness probe")
    want(set(server.mounts) <= {program.data, "/tmp"}, f"{file} mounts {server.mounts}")
    want(server.user in (None, program.user), f"{file} has the user {server.user}, and the image {program.user}")


def check(servers, program):
    for server in servers.values():
        check_one(server, program)
