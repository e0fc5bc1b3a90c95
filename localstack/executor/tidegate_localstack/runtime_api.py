"""Lambda's runtime API (2018-06-01), as the process of one execution environment sees it.

The process asks for the next invocation and waits until there is one, then posts what came of it. One environment runs one
invocation at a time, so two queues are all there is between the process and whoever invokes.
"""

import queue
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API = "/2018-06-01/runtime"


@dataclass(frozen=True)
class Invocation:
    """What the process is asked to do."""

    id: str
    payload: bytes
    function_arn: str
    trace: str
    deadline_ms: int


@dataclass(frozen=True)
class Outcome:
    """What the process said came of an invocation."""

    id: str
    body: bytes
    is_error: bool


class RuntimeApi:
    """The API on a loopback port, from when it is made until it is closed."""

    def __init__(self) -> None:
        self.invocations: queue.Queue[Invocation | None] = queue.Queue()
        self.outcomes: queue.Queue[Outcome] = queue.Queue()
        self.init_error: bytes | None = None
        # Set once the process has asked for work or has said that it cannot start.
        self.started = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        """The value of `AWS_LAMBDA_RUNTIME_API`."""
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Answers nobody any more. Whoever waits for an invocation is let go."""
        self.invocations.put(None)
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: RuntimeApi

    def handle_error(self, request, client_address) -> None:
        """A process that was ended is not there to be answered; that is no fault of the API's."""


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
        """Every invocation is logged by whoever asked for it."""
