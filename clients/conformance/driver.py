"""Runs the scenarios of `scenarios/` with the agent of one client, against a real server.

    driver.py --program TIDEGATE --language NAME [--scenario TEXT] -- AGENT...
    driver.py --url URL --language NAME [--scenario TEXT] -- AGENT...

With `--url`, the server is a deployment that stays, and `TIDEGATE_TOKEN` its token. The scenarios
run one after the other, with names that no other run has. Those that cannot hold on AWS say why in
their field `not_on_aws`, and are left out.

An agent is a small program in the client's language. It gets `TIDEGATE_URL`, reads one JSON request
on each line of its input, and writes one JSON answer on each line of its output, in any order; see
README.md. Between agent and server is a proxy that injects faults.
"""

from __future__ import annotations

import argparse
import base64
import concurrent.futures
import hashlib
import hmac
import itertools
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.parse
import urllib.request
import uuid

from proxy import Proxy

HERE = pathlib.Path(__file__).resolve().parent
WAIT_SECONDS = 20.0


class Failed(Exception):
    """A step did not do what the scenario expects."""


class Agent:
    def __init__(
        self,
        command: list[str],
        url: str,
        program: str,
        token: str | None,
        timeout: float | None,
    ) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
        if token is not None:
            env["TIDEGATE_TOKEN"] = token
        if timeout is not None:
            env["CONFORMANCE_CLIENT_TIMEOUT"] = str(timeout)
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**env, "TIDEGATE_URL": url, "TIDEGATE_PROGRAM": program},
        )
        self._answers: dict[int, concurrent.futures.Future] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            self._answers[answer["id"]].set_result(answer)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(Failed("the agent ended without an answer"))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors.append(line)
            del self.errors[:-200]

    def call(self, request: dict) -> concurrent.futures.Future:
        number = next(self._numbers)
        future: concurrent.futures.Future = concurrent.futures.Future()
        self._answers[number] = future
        assert self.process.stdin is not None
        with self._lock:
            self.process.stdin.write(json.dumps({**request, "id": number}) + "\n")
            self.process.stdin.flush()
        return future

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Deployment:
    """A server that is there, and stays."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url, self.token = url, token

    @property
    def port(self) -> int:
        port = urllib.parse.urlsplit(self.url).port
        return 80 if port is None else port

    def start(self) -> None:
        """It runs."""

    def end(self, number: int = signal.SIGKILL) -> None:
        """It goes on."""

    def pause(self, number: int) -> None:
        """It goes on."""

    def call(
        self, method: str, target: str, body: object = None, headers: dict | None = None
    ) -> tuple:
        data = None if body is None else json.dumps(body).encode()
        token = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(
            self.url + target,
            data,
            {"content-type": "application/json", **token, **(headers or {})},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=70) as answer:
                return answer.status, json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")


class Server(Deployment):
    """A server on a directory that stays, at one port, so that it can be killed and restarted.

    With `store` it is one of `tidegate serve`, with its data in that database of Postgres.
    """

    def __init__(self, program: str, directory: str, store: str | None = None) -> None:
        super().__init__("http://127.0.0.1:0", None)
        self.program, self.directory, self.store = program, directory, store
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
        mode, place = "dev", ["--dir", f"{self.directory}/data"]
        if self.store is not None:
            mode, place = "serve", []
            key = base64.b64encode(bytes([7] * 32)).decode()
            env |= {"TIDEGATE_STORE": self.store, "TIDEGATE_ENCRYPTION_KEY": key}
        log = pathlib.Path(self.directory, "log")
        begin = log.stat().st_size if log.exists() else 0
        with log.open("a") as out:
            self.process = subprocess.Popen(
                [self.program, mode, "--listen", f"127.0.0.1:{self.port}", *place],
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=env,
            )
        until = time.monotonic() + WAIT_SECONDS
        while True:
            text = log.read_text()[begin:]
            if found := re.search(r" on http://127\.0\.0\.1:(\d+)", text):
                self.url = f"http://127.0.0.1:{found[1]}"
                break
            if self.process.poll() is not None or time.monotonic() > until:
                raise Failed(f"the server did not start: {text}")
            time.sleep(0.02)
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/readyz", timeout=5).close()
                return
            except OSError:
                if time.monotonic() > until:
                    raise Failed("the server is not ready") from None
                time.sleep(0.02)

    def end(self, number: int = signal.SIGKILL) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            if number == signal.SIGTERM:
                self.process.send_signal(signal.SIGCONT)
            self.process.wait()
            self.process = None

    def pause(self, number: int) -> None:
        """Let it hang: connections stay open, and no answer comes. Or let it run on."""
        if self.process is not None:
            self.process.send_signal(number)


# Fields whose values are names of resources and jobs.
NAMES = {"child", "event", "id", "job", "key", "name", "queue", "trigger", "type", "types"}
RESOURCES = {"queues", "job_types", "schedules", "triggers"}


class Renamed:
    """A scenario with names that no other run has: a deployment keeps what earlier ones have made.

    The queue `default` is one of its own, too.
    """

    def __init__(self, document: dict) -> None:
        self.tag = uuid.uuid4().hex[:8]
        self.names = {"default"}
        self._collect(document["steps"])
        words = "|".join(sorted(map(re.escape, self.names), key=len, reverse=True))
        self.in_path = re.compile(rf"(?<=[/=])({words})(?=$|[/?&$])")
        self.in_text = re.compile(rf"(?<![\w.-])({words})(?![\w.-])")
        steps = [self._value(step, None) for step in document["steps"]]
        put = {"api": f"PUT /v1/queues/{self._name('default')}", "body": {}}
        self.document = {**document, "steps": [put, *steps]}

    def _collect(self, value: object) -> None:
        if isinstance(value, list):
            for item in value:
                self._collect(item)
        if not isinstance(value, dict):
            return
        for key, item in value.items():
            if key == "api" and (found := re.match(r"PUT /v1/[a-z-]+/([^/?]+)$", str(item))):
                self.names.add(found[1])
            if key in RESOURCES and isinstance(item, dict):
                self.names.update(item)
            if key in ("child", "event", "id", "key", "name") and isinstance(item, str):
                self.names.add(item)
            self._collect(item)

    def _name(self, name: str) -> str:
        return f"{name}-{self.tag}" if name in self.names else name

    def _value(self, value: object, key: str | None) -> object:
        if isinstance(value, dict):
            if key in RESOURCES:
                return {self._name(name): self._value(item, None) for name, item in value.items()}
            renamed = {name: self._value(item, name) for name, item in value.items()}
            if str(value.get("api", "")).startswith("PUT /v1/job-types/"):
                renamed["body"] = {"queue": self._name("default"), **renamed["body"]}
            return renamed
        if isinstance(value, list):
            return [self._value(item, key) for item in value]
        if not isinstance(value, str) or value.startswith("$"):
            return value
        if key in ("api", "until", "match", "requests"):
            return self.in_path.sub(lambda found: self._name(found[0]), value)
        if key in ("$has", "text"):
            return self.in_text.sub(lambda found: self._name(found[0]), value)
        return self._name(value) if key in NAMES else value


class Scenario:
    def __init__(
        self, document: dict, program: str, command: list[str], deployment: Deployment | None
    ) -> None:
        self.document, self.program, self.command = document, program, command
        self.deployment = deployment
        if deployment is not None:
            self.document = Renamed(document).document
        self.values: dict[str, object] = {}
        self.pending: dict[str, concurrent.futures.Future] = {}

    def run(self) -> None:
        with tempfile.TemporaryDirectory(prefix="tidegate-conformance-") as directory:
            self.server = self.deployment or Server(self.program, directory)
            self.server.start()
            self.proxy = Proxy(("127.0.0.1", self.server.port))
            token = self.server.token
            timeout = self.document.get("client_timeout")
            self.agent = Agent(self.command, self.proxy.url, self.program, token, timeout)
            try:
                for index, step in enumerate(self.document["steps"]):
                    try:
                        self.step(self.filled(step))
                    except Exception as error:
                        shown = json.dumps(step)[:300]
                        log = "".join(self.agent.errors[-40:])
                        raise Failed(f"step {index + 1} {shown}\n  {error}\n{log}") from error
                if left := self.proxy.pending():
                    raise Failed(f"faults that met no request: {left}")
            finally:
                self.agent.end()
                self.proxy.close()
                self.server.end()

    def filled(self, value: object) -> object:
        """The step with `$name.field` replaced by what an earlier step has stored."""
        if isinstance(value, dict):
            return {key: self.filled(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, str):
            if whole := re.fullmatch(r"\$([a-z_]+)((?:\.\w+)*)", value):
                return self.value(whole[1], whole[2])
            return re.sub(
                r"\$\{([a-z_]+)((?:\.\w+)*)\}",
                lambda found: str(self.value(found[1], found[2])),
                value,
            )
        return value

    def value(self, name: str, path: str) -> object:
        if name == "url":
            return self.server.url
        value = self.values[name]
        for part in path.split(".")[1:]:
            value = value[int(part)] if isinstance(value, list) else value[part]
        return value

    def step(self, step: dict) -> None:
        if "agent" in step:
            request = {**step.get("with", {}), "op": step["agent"]}
            began = time.monotonic()
            future = self.agent.call(request)
            if "background" in step:
                self.pending[step["background"]] = future
            else:
                self.answered(step, future.result(step.get("seconds", 60)))
                took = time.monotonic() - began
                if took < step.get("at_least_seconds", 0):
                    raise Failed(f"it took only {took:.1f} s")
        elif "join" in step:
            future = self.pending.pop(step["join"])
            self.answered(step, future.result(step.get("seconds", 60)))
        elif "api" in step:
            method, target = step["api"].split(" ", 1)
            status, answer = self.server.call(method, target, step.get("body"), step.get("headers"))
            wanted = step.get("status")
            if status >= 400 if wanted is None else status != wanted:
                raise Failed(f"the server answered {status}: {answer}")
            self.matches(answer, step)
        elif "until" in step:
            method, target = step["until"].split(" ", 1)
            until = time.monotonic() + step.get("seconds", WAIT_SECONDS)
            while True:
                _, answer = self.server.call(method, target, step.get("body"))
                try:
                    return self.matches(answer, step)
                except Failed:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)
        elif "until_agent" in step:
            until = time.monotonic() + step.get("seconds", WAIT_SECONDS)
            while True:
                request = {**step.get("with", {}), "op": step["until_agent"]}
                try:
                    return self.answered(step, self.agent.call(request).result(60))
                except Failed:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.05)
        elif "fault" in step:
            self.proxy.add(step["fault"])
        elif "no_faults" in step:
            self.proxy.clear()
        elif "requests" in step:
            self.check_requests(step)
        elif "server" in step:
            if step["server"] == "start":
                self.server.start()
            elif step["server"] in ("pause", "resume"):
                self.server.pause(signal.SIGSTOP if step["server"] == "pause" else signal.SIGCONT)
            else:
                self.server.end(signal.SIGKILL if step["server"] == "kill" else signal.SIGTERM)
        elif "signal" in step:
            self.agent.process.send_signal(getattr(signal, step["signal"]))
        elif "agent_ends" in step:
            code = self.agent.process.wait(WAIT_SECONDS)
            if code != step["agent_ends"]:
                raise Failed(f"the agent ended with {code}")
        elif "sign" in step:
            self.values[step["as"]] = signed(step["sign"])
        elif "push" in step:
            status = self.push(step)
            if status != step["status"]:
                raise Failed(f"the push was answered with {status}")
        else:
            raise Failed("no such step")
        return None

    def push(self, step: dict) -> int:
        """Push a leased attempt to a push handler, with a callback through the proxy."""
        lease = step["lease"]
        job = lease["job"]
        names = ("id", "type", "max_attempts", "data")
        target = "/".join(urllib.parse.quote(job[name], safe="") for name in ("type", "id"))
        callback = {"url": f"{self.proxy.url}/v1/jobs/{target}", "token": lease["token"]}
        body = {
            **{name: job[name] for name in names},
            "attributes": job.get("attributes") or {},
            "attempt": lease["attempt"],
            "callback": callback,
        }
        request = signed({"secrets": [step["secret"]], "body": json.dumps(body)})
        headers = {"content-type": "application/json", **request["headers"]}
        sent = urllib.request.Request(step["push"], request["body"].encode(), headers)
        try:
            with urllib.request.urlopen(sent, timeout=30) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    def check_requests(self, step: dict) -> None:
        found = self.proxy.requests(step["requests"])
        if "count" in step and len(found) != step["count"]:
            raise Failed(f"{len(found)} requests {step['requests']}")
        if "at_least" in step and len(found) < step["at_least"]:
            raise Failed(f"{len(found)} requests {step['requests']}")
        if "at_most" in step and len(found) > step["at_most"]:
            raise Failed(f"{len(found)} requests {step['requests']}")
        if "spread_seconds" in step:
            took = found[-1].at - found[0].at
            if took < step["spread_seconds"]:
                raise Failed(f"{len(found)} requests {step['requests']} within {took:.2f} s")
        for name in step.get("same", []):
            values = {field_of(seen.headers, seen.body, name) for seen in found}
            if len(values) != 1 or None in values:
                raise Failed(f"{name} of the requests: {values}")
        for name in step.get("with_field", []):
            if not any(field_of(seen.headers, seen.body, name) for seen in found):
                raise Failed(f"no request has {name}")

    def answered(self, step: dict, answer: dict) -> None:
        if "error" in step:
            if "error" not in answer:
                raise Failed(f"no error, but {answer}")
            check(answer["error"], step["error"], "error")
            return
        if "error" in answer:
            raise Failed(f"the agent answered {answer['error']}")
        self.matches(answer.get("ok"), step)

    def matches(self, answer: object, step: dict) -> None:
        if "expect" in step:
            check(answer, step["expect"], "")
        if "as" in step:
            self.values[step["as"]] = answer


def field_of(headers: dict, body: bytes, name: str) -> object:
    """A header, or with a leading dot a field of the body."""
    if not name.startswith("."):
        return headers.get(name)
    value = json.loads(body or b"null")
    for part in name[1:].split("."):
        if isinstance(value, list):
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = (value or {}).get(part)
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def check(actual: object, wanted: object, where: str) -> None:
    """`wanted` is within `actual`. `{"$has": TEXT}`, `{"$has": [TEXT, ...]}`, `{"$length": N}`,
    `{"$each": VALUE}`, `{"$any": true}` and `{"$absent": true}` are conditions."""
    if isinstance(wanted, dict):
        if "$has" in wanted:
            texts = wanted["$has"] if isinstance(wanted["$has"], list) else [wanted["$has"]]
            for text in texts:
                if text not in str(actual):
                    raise Failed(f"{where}: {text!r} is not in {actual!r}")
            return
        if "$length" in wanted:
            if not isinstance(actual, (list, str)) or len(actual) != wanted["$length"]:
                raise Failed(f"{where}: the length of {actual!r:.300} is not {wanted['$length']}")
            return
        if "$each" in wanted:
            if not isinstance(actual, list) or not actual:
                raise Failed(f"{where}: {actual!r:.300} is not a list of some items")
            for index, item in enumerate(actual):
                check(item, wanted["$each"], f"{where}[{index}]")
            return
        if "$any" in wanted:
            if not actual:
                raise Failed(f"{where}: {actual!r} is empty")
            return
        if "$absent" in wanted:
            if actual is not None:
                raise Failed(f"{where}: {actual!r} is present")
            return
        if not isinstance(actual, dict):
            raise Failed(f"{where}: {actual!r:.300} is not {wanted!r}")
        for name, value in wanted.items():
            check(actual.get(name), value, f"{where}.{name}")
        return
    if isinstance(wanted, list):
        if not isinstance(actual, list) or len(actual) != len(wanted):
            raise Failed(f"{where}: {actual!r:.500} is not {wanted!r:.300}")
        for index, value in enumerate(wanted):
            check(actual[index], value, f"{where}[{index}]")
        return
    if actual != wanted or isinstance(actual, bool) != isinstance(wanted, bool):
        raise Failed(f"{where}: {actual!r:.300} is not {wanted!r:.300}")


def signed(request: dict) -> dict:
    """Headers of Standard Webhooks for a body, made here so that clients meet another program's."""
    at = str(int(time.time()) + request.get("shift", 0))
    body = request["body"]
    signatures = []
    for secret in request["secrets"]:
        coded = secret.removeprefix("whsec_")
        key = secret.encode() if coded == secret else base64.b64decode(coded)
        digest = hmac.new(key, f"m-1.{at}.{body}".encode(), hashlib.sha256).digest()
        signatures.append("v1," + base64.b64encode(digest).decode())
    headers = {
        "webhook-id": "m-1",
        "webhook-timestamp": at,
        "webhook-signature": " ".join(signatures),
    }
    return {"headers": headers, "body": body}


def main() -> None:
    parser = argparse.ArgumentParser()
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--program")
    where.add_argument("--url")
    parser.add_argument("--language", required=True)
    parser.add_argument("--scenario", help="only those whose names have this text")
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("command", nargs="+")
    args = parser.parse_args()
    documents = []
    for file in sorted((HERE / "scenarios").glob("*.json")):
        documents += json.loads(file.read_text())["scenarios"]
    names = [document["name"] for document in documents]
    if len(set(names)) != len(names):
        sys.exit("two scenarios have one name")
    chosen = [d for d in documents if not args.scenario or args.scenario in d["name"]]
    if not chosen:
        sys.exit(f"no scenario has {args.scenario!r} in its name")
    deployment = None
    if args.url:
        deployment = Deployment(args.url, os.environ.get("TIDEGATE_TOKEN"))
        for document in chosen:
            if "not_on_aws" in document:
                print(f"not on AWS       {document['name']}: {document['not_on_aws']}", flush=True)
        chosen = [document for document in chosen if "not_on_aws" not in document]
    # One that takes long begins first, so that the others run meanwhile.
    chosen.sort(key=lambda document: -document.get("takes_seconds", 0))
    failed = 0
    began = time.monotonic()

    def run(document: dict) -> tuple[str, float, str | None]:
        start = time.monotonic()
        try:
            Scenario(document, args.program or "", args.command, deployment).run()
        except Failed as error:
            return document["name"], time.monotonic() - start, str(error)
        except Exception:
            return document["name"], time.monotonic() - start, traceback.format_exc()
        return document["name"], time.monotonic() - start, None

    jobs = args.jobs if deployment is None else 1
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, took, error in pool.map(run, chosen):
            mark = "ok    " if error is None else "FAILED"
            print(f"{mark} {args.language:10} {took:5.1f} s  {name}", flush=True)
            if error is not None:
                failed += 1
                print("    " + error.replace("\n", "\n    "), flush=True)
    took = time.monotonic() - began
    print(f"{args.language}: {len(chosen) - failed} of {len(chosen)} scenarios in {took:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
