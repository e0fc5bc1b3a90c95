"""Lambda's runtime API (2018-06-01), as the process of one execution environment sees it.

The process requests the next invocation, waits until there is one, and posts its outcome. One
environment runs one invocation at a time, so two queues connect the process with the invoker.
"""

import queue
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API = "/2018-06-01/runtime"


@dataclass(frozen=True)
class Invocation:
    """One call of the function."""

    id: str
    payload: bytes
    function_arn: str
    trace: str
    deadline_ms: int


@dataclass(frozen=True)
class Outcome:
    """The response of the process to an invocation."""

    id: str
    body: bytes
    is_error: bool


class RuntimeApi:
    """The API on a loopback port, until `close`."""

    def __init__(self) -> None:
        self.invocations: queue.Queue[Invocation | None] = queue.Queue()
        self.outcomes: queue.Queue[Outcome] = queue.Queue()
        self.init_error: bytes | None = None
        # Set when the process has requested an invocation or has reported a failed start.
        self.started = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """The value of `AWS_LAMBDA_RUNTIME_API`."""
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stops the server and releases a process that waits for an invocation."""
        self.invocations.put(None)
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: RuntimeApi

    def handle_error(self, request, client_address) -> None:
        """Ignores broken connections: the process of a connection may have been stopped."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if self.path != f"{API}/invocation/next":
            return self._answer(404)
        api = self.server.api
        api.started.set()
        invocation = api.invocations.get()
        if invocation is None:
            self.close_connection = True
            return self._answer(410)
        self._answer(
            200,
            invocation.payload,
            {
                "Content-Type": "application/json",
                "Lambda-Runtime-Aws-Request-Id": invocation.id,
                "Lambda-Runtime-Deadline-Ms": str(invocation.deadline_ms),
                "Lambda-Runtime-Invoked-Function-Arn": invocation.function_arn,
                "Lambda-Runtime-Trace-Id": invocation.trace,
            },
        )

    def do_POST(self) -> None:
        body, api = self._body(), self.server.api
        match self.path.removeprefix(f"{API}/").split("/"):
            case ["init", "error"]:
                api.init_error = body
                api.started.set()
            case ["invocation", id, ("response" | "error") as kind]:
                api.outcomes.put(Outcome(id, body, kind == "error"))
            case _:
                return self._answer(404)
        self._answer(202, b'{"status":"OK"}', {"Content-Type": "application/json"})

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        # Trailers, if any, end with an empty line.
        while self.rfile.readline().strip():
            pass
        return b"".join(chunks)

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args) -> None:
        """Logs nothing: LocalStack logs every invocation."""
