"""A proxy that injects faults: errors, lost requests, lost answers, slow answers.

A rule applies to the next `times` requests that its `match` (`POST /v1/jobs`, a prefix of method
and path, or all of them with `$` at the end) names and whose body contains `has`, without the first
`after` of them. Requests that no rule matches pass unchanged.
"""

from __future__ import annotations

import http.client
import http.server
import json
import socketserver
import threading
import time
from typing import NamedTuple


def is_match(line: str, match: str) -> bool:
    """Whether method and path begin with `match`, or are it if it ends with `$`."""
    return line == match[:-1] if match.endswith("$") else line.startswith(match)


HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Seen(NamedTuple):
    """A request that came: method and path, headers with names in lower case, body, and when."""

    line: str
    headers: dict
    body: bytes
    at: float


class Proxy:
    """Forwards to `upstream` (host, port). `url` is where it listens."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.rules: list[dict] = []
        self.seen: list[Seen] = []
        self._lock = threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                proxy.forward(self)

            do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                pass

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """A client that closed its connection is no fault of the proxy."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, rule: dict) -> None:
        with self._lock:
            self.rules.append({"times": 1, "after": 0, **rule})

    def clear(self) -> None:
        with self._lock:
            self.rules.clear()

    def pending(self) -> list[dict]:
        with self._lock:
            return [dict(rule) for rule in self.rules]

    def requests(self, match: str) -> list[Seen]:
        """The requests that came, those that were lost or refused included."""
        with self._lock:
            return [seen for seen in self.seen if is_match(seen.line, match)]

    def _rule(self, line: str, body: bytes) -> dict | None:
        for rule in self.rules:
            if is_match(line, rule["match"]) and rule.get("has", "").encode() in body:
                if rule["after"] > 0:
                    rule["after"] -= 1
                    continue
                rule["times"] -= 1
                if rule["times"] <= 0:
                    self.rules.remove(rule)
                return rule
        return None

    def forward(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        line = f"{request.command} {request.path}"
        with self._lock:
            headers = {name.lower(): value for name, value in request.headers.items()}
            self.seen.append(Seen(line, headers, body, time.monotonic()))
            rule = self._rule(line, body) or {}
        action = rule.get("action")
        if action == "status":
            return self._refuse(request, rule)
        if action == "lose_request":
            request.close_connection = True
            return None
        if action == "slow_request":
            time.sleep(rule["seconds"])
        refused = []
        if action == "refuse_reports":
            document = json.loads(body)
            refused = document.pop("reports")
            body = json.dumps(document).encode()
        connection = http.client.HTTPConnection(*self.upstream, timeout=90)
        try:
            headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
            connection.request(request.command, request.path, body or None, headers)
            answer = connection.getresponse()
            if "event-stream" in answer.headers.get("content-type", ""):
                return self._stream(request, answer)
            content = answer.read()
        except (OSError, http.client.HTTPException):
            request.close_connection = True
            return None
        finally:
            connection.close()
        if refused and answer.status == 200:
            document = json.loads(content)
            refusal = {"status": rule["status"], "error": self._problem(rule)}
            document["reports"] = [{"id": report["id"], **refusal} for report in refused]
            content = json.dumps(document).encode()
        if action == "lose_answer":
            time.sleep(rule.get("seconds", 0))
            request.close_connection = True
            return None
        if action == "slow_answer":
            time.sleep(rule["seconds"])
        request.send_response_only(answer.status)
        for name, value in answer.headers.items():
            if name.lower() not in HOP:
                request.send_header(name, value)
        if action == "cut_answer":
            request.send_header("content-length", str(len(content) + 10))
            request.close_connection = True
        elif answer.status != 204:
            request.send_header("content-length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)
        return None

    @staticmethod
    def _problem(rule: dict) -> dict:
        return {
            "type": "urn:tidegate:problem:unavailable",
            "title": "Unavailable",
            "status": rule["status"],
            "detail": "a fault of the test",
            "code": rule.get("code", "unavailable"),
        }

    def _refuse(self, request: http.server.BaseHTTPRequestHandler, rule: dict) -> None:
        content = json.dumps(self._problem(rule)).encode()
        request.send_response_only(rule["status"])
        request.send_header("content-type", "application/problem+json")
        if "retry_after" in rule:
            request.send_header("retry-after", str(rule["retry_after"]))
        request.send_header("content-length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    @staticmethod
    def _stream(
        request: http.server.BaseHTTPRequestHandler, answer: http.client.HTTPResponse
    ) -> None:
        request.send_response_only(answer.status)
        request.send_header("content-type", answer.headers["content-type"])
        request.send_header("connection", "close")
        request.end_headers()
        request.close_connection = True
        while part := answer.read1(65536):
            request.wfile.write(part)
            request.wfile.flush()
