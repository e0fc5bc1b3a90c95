"""What the server is: from its help, its own reading of settings, and its sources."""

import base64
import functools
import hashlib
import json
import os
import re
import subprocess

from . import want

# A valid key and a valid hash, in place of secrets.
KEY = base64.b64encode(bytes(range(32))).decode()
TOKEN = "admin:" + base64.b64encode(hashlib.sha256(b"secret").digest()).decode()


@functools.cache
def run(program, args, env):
    """What the program does with these arguments and this environment, a tuple of pairs."""
    env = {"PATH": os.environ["PATH"], **dict(env)}
    return subprocess.run([program, *args], capture_output=True, text=True, env=env)


def found(pattern, text, what):
    match = re.search(pattern, text)
    want(match, f"{what} is not where this check reads it")
    return match[1]


class Program:
    """The program at `path`, and its repository at `root`."""

    def __init__(self, path, root):
        self.path, self.root = path, root
        self.variables = set(re.findall(r"\[env: (TIDEGATE_\w+)", self.run("serve", "--help").stdout))
        self.flags = self.flags_of(["serve"])
        self.documented = set(
            re.findall(r"^\| `[a-z_.]+` \| `(TIDEGATE_\w+)", self.read("docs/operate.md"), re.MULTILINE)
        )
        want(self.documented, "docs/operate.md has no table of settings")
        image = self.read("xtask/src/release/image.rs")
        self.user = int(found(r"const USER: u64 = ([\d_]+);", image, "the user of the image").replace("_", ""))
        self.data = found(r'const DATA: &str = "([^"]+)";', image, "the data directory of the image")
        self.listen = found(r'const LISTEN: &str = "([^"]+)";', image, "the address in the image")
        self.port = int(self.listen.rsplit(":", 1)[1])
        want('&["serve", "--listen", LISTEN, "--data", DATA]' in image, "the command of the image is another one")
        routes = self.read("src/server/handlers/health.rs")
        open_routes = found(r"OPEN_ROUTES: [^=]+= \[([^\]]+)\]", routes, "the health routes")
        self.alive, self.ready = re.findall(r'"([^"]+)"', open_routes)
        log = self.read("src/cli/serve/log.rs")
        seconds = r"RELEASE_TIMEOUT: Duration = Duration::from_secs\((\d+)\)"
        self.seal_seconds = int(found(seconds, log, "the time to end the log"))
        manifest = self.read("Cargo.toml")
        self.version = found(r'\[workspace\.package\]\n(?:[^\[].*\n)*?version = "([^"]+)"', manifest, "the version")

    def read(self, path):
        return (self.root / path).read_text()

    def run(self, *args, env=()):
        return run(self.path, args, env)

    def flags_of(self, words):
        """The flags of a command, or none if there is no such command."""
        done = self.run(*words, "--help")
        return None if done.returncode else set(re.findall(r"^\s+(?:-\w, )?(--[a-z-]+)", done.stdout, re.MULTILINE))

    def effective(self, args, env):
        """The settings that the program reads from `args` and `env`, or none and why."""
        done = self.run("serve", *args, "--print-settings", env=tuple(sorted(env.items())))
        if done.returncode:
            return None, done.stderr
        lines = (line.split(" = ", 1) for line in done.stdout.splitlines() if " = " in line)
        return {name: value_of(text) for name, text in lines}, ""


def value_of(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
