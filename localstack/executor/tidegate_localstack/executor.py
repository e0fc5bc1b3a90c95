"""`LAMBDA_RUNTIME_EXECUTOR=process`: the `bootstrap` of a function runs as a process of this machine.

LocalStack's own executor wants a Docker engine. This one starts the same file from the same package and speaks the runtime
API to it, one process for each execution environment, as Lambda does. It isolates nothing: the process may do what you may,
and no memory limit is kept.
"""

import json
import os
import queue
import subprocess
import tempfile
import time
from pathlib import Path

from localstack import config
from localstack.services.lambda_.invocation.lambda_models import FunctionVersion, InvocationResult
from localstack.services.lambda_.invocation.plugins import RuntimeExecutorPlugin
from localstack.services.lambda_.invocation.runtime_executor import RuntimeExecutor

from . import alias
from .runtime_api import Invocation, Outcome, RuntimeApi

# Lambda's own limit for the start of an environment.
START_SECONDS = 10
# Interval at which a waiting invocation checks that its process still runs.
POLL_SECONDS = 0.05


class ProcessExecutorPlugin(RuntimeExecutorPlugin):
    """Where LocalStack finds the executor."""

    name = "process"

    def load(self, *_args, **_kwargs) -> type[RuntimeExecutor]:
        alias.patch()
        return ProcessExecutor


class ProcessExecutor(RuntimeExecutor):
    """One execution environment: a process and its runtime API, both started again when the process has ended."""

    def __init__(self, id: str, function_version: FunctionVersion) -> None:
        super().__init__(id=id, function_version=function_version)
        self._process: subprocess.Popen | None = None
        self._api: RuntimeApi | None = None
        self._variables: dict[str, str] = {}
        self._log = Path(tempfile.gettempdir()) / f"function-{id}.log"

    def start(self, env_vars: dict[str, str]) -> None:
        self._variables = {name: str(value) for name, value in env_vars.items()}
        self._spawn()

    def stop(self) -> None:
        self._end()
        self._log.unlink(missing_ok=True)

    def invoke(self, payload: dict[str, str]) -> InvocationResult:
        id, configuration = payload["invoke-id"], self.function_version.config
        if self._process is None or self._process.poll() is not None:
            self._spawn()
        logged = self._log.stat().st_size
        began = time.monotonic()
        deadline_ms = int((time.time() + configuration.timeout) * 1000)
        self._api.invocations.put(
            Invocation(id, payload["payload"].encode(), payload["invoked-function-arn"], payload.get("trace-id", ""), deadline_ms)
        )
        outcome = self._outcome(id, began + configuration.timeout)
        milliseconds = (time.monotonic() - began) * 1000
        with self._log.open("rb") as log:
            log.seek(logged)
            output = log.read().decode(errors="replace")
        logs = (
            f"START RequestId: {id} Version: {self.function_version.id.qualifier}\n{output}END RequestId: {id}\n"
            f"REPORT RequestId: {id}\tDuration: {milliseconds:.2f} ms\tBilled Duration: {int(milliseconds) + 1} ms"
            f"\tMemory Size: {configuration.memory_size} MB\n"
        )
        return InvocationResult(id, outcome.body, is_error=outcome.is_error, logs=logs)

    def _outcome(self, id: str, until: float) -> Outcome:
        """The outcome of an invocation: the response of the process, its exit, or a timeout."""
        while True:
            try:
                outcome = self._api.outcomes.get(timeout=POLL_SECONDS)
                # Drops the late response to an invocation that timed out.
                if outcome.id == id:
                    return outcome
            except queue.Empty:
                status = self._process.poll()
                if status is not None:
                    return _failure(id, "Runtime.ExitError", f"Error: Runtime exited with error: exit status {status}")
                if time.monotonic() > until:
                    self._process.kill()
                    return _failure(id, "Sandbox.Timedout", f"Error: Task timed out after {self.function_version.config.timeout:.2f} seconds")

    def _spawn(self) -> None:
        self._end()
        self._api = RuntimeApi()
        code = self.function_version.config.code.get_unzipped_code_location()
        bootstrap = Path(code) / "bootstrap"
        for program in Path(code).iterdir():
            program.chmod(0o755)
        environment = {
            "PATH": os.environ["PATH"],
            "LANG": "en_US.UTF-8",
            **self._variables,
            "AWS_LAMBDA_RUNTIME_API": self._api.address,
            "LAMBDA_TASK_ROOT": str(code),
        }
        if "DYNOXIDE_URL" in os.environ:
            environment["AWS_ENDPOINT_URL_DYNAMODB"] = os.environ["DYNOXIDE_URL"]
        with self._log.open("ab") as log:
            # Its own process group, so that a signal to LocalStack ends it through `stop`.
            self._process = subprocess.Popen(
                [bootstrap], cwd=code, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + START_SECONDS
        while not self._api.started.wait(POLL_SECONDS):
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"{bootstrap} did not start (exit status {self._process.poll()}): {self.get_logs()[-2000:]}")
        if self._api.init_error is not None:
            raise RuntimeError(f"{bootstrap} could not start: {self._api.init_error.decode(errors='replace')}")

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._api is not None:
            self._api.close()
            self._api = None

    # The rest of the interface: addresses, which are always local.

    def get_address(self) -> str:
        return "127.0.0.1"

    def get_endpoint_from_executor(self) -> str:
        return "127.0.0.1"

    def get_runtime_endpoint(self) -> str:
        return f"http://127.0.0.1:{config.GATEWAY_LISTEN[0].port}/_localstack_lambda/{self.id}"

    def get_logs(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @classmethod
    def prepare_version(cls, function_version: FunctionVersion) -> None:
        if function_version.config.code:
            function_version.config.code.prepare_for_execution()

    @classmethod
    def cleanup_version(cls, function_version: FunctionVersion) -> None:
        """Does nothing: removing the code removes all files of a version."""


def _failure(id: str, kind: str, message: str) -> Outcome:
    body = {"errorType": kind, "errorMessage": f"RequestId: {id} {message}"}
    return Outcome(id, json.dumps(body).encode(), is_error=True)
