"""A small HTTP server that answers as docs/use/http-api.md says, from what a test puts into it."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token"


def job_json(job: str = "1127-100000-aaaa", **fields: Any) -> dict[str, Any]:
    """Return a job as the API has it."""
    return {
        "job": job,
        "name": "demo",
        "state": "running",
        "detail": None,
        "step": 3,
        "steps": 10,
        "loss": 1.5,
        "validation_loss": None,
        "checkpoint_step": None,
        "model_sha256": None,
        "tokens_per_second": 100.0,
        "seconds_left": None,
        "submitted": "2026-11-27T10:00:00.123Z",
        "started": "2026-11-27T10:00:01Z",
        "ended": None,
        **fields,
    }


def problem(status: int, kind: str, detail: str, **members: Any) -> Answer:
    """Return the answer of an error."""
    body = {"type": f"/problems/{kind}", "title": kind, "status": status, "detail": detail, **members}
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/problem+json"})


def answer_json(value: Any, status: int = 200) -> Answer:
    """Return the answer with a JSON value."""
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})


def event(number: int, kind: str, **data: Any) -> str:
    """Return a server-sent event."""
    return f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"


@dataclass
class Answer:
    """An answer, or what goes wrong in its place.

    Attributes:
        status: HTTP status.
        body: content.
        headers: further headers.
        breaks_after: number of bytes of the body after which the connection breaks; None to send all.
        is_lost: whether the request is carried out and its answer lost.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    breaks_after: int | None = None
    is_lost: bool = False


@dataclass
class Received:
    """A request that has come."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its body as a JSON value."""
        return json.loads(self.body)


@dataclass
class WebApi:
    """What the server has, by path, and what it was asked.

    Attributes:
        answers: answers by method and path, in order; the last one stays.
        received: the requests, in order.
        files: contents of files that were put, by SHA-256.
        wanted: paths that the configs of submissions name.
        code_is_wanted: whether the code of submissions is missing until it is put.
        logs: logs by job.
        url: address.
    """

    answers: dict[tuple[str, str], list[Answer]] = field(default_factory=dict)
    received: list[Received] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    wanted: list[str] = field(default_factory=list)
    code_is_wanted: bool = False
    logs: dict[str, bytes] = field(default_factory=dict)
    url: str = ""

    def put(self, method: str, path: str, *answers: Answer) -> None:
        """Set the answers of a path."""
        self.answers[method, path] = list(answers)

    def asked(self, method: str, path: str) -> list[Received]:
        """Return the requests to a path."""
        return [each for each in self.received if (each.method, each.path) == (method, path)]

    def answer(self, request: Received) -> Answer:
        """Return the answer to a request."""
        self.received.append(request)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return problem(401, "unauthenticated", "no token given, expected one; give token=")
        known = self.answers.get((request.method, request.path))
        if known:
            return known.pop(0) if len(known) > 1 else known[0]
        if (request.method, request.path) == ("POST", "/v1/jobs"):
            return self._submit(request.json)
        if request.method == "PUT":
            return self._keep(request)
        if request.path.endswith("/log"):
            return self._log(request)
        return problem(404, "not-found", f"{request.path}: no such path; correct it")

    def _submit(self, submission: dict[str, Any]) -> Answer:
        named = submission["files"]
        missing = [
            {"path": path, "sha256": named.get(path)}
            for path in self.wanted
            if named.get(path) not in self.files
        ]
        if self.code_is_wanted and submission["code"]["sha256"] not in self.files:
            missing.append(submission["code"])
        if missing:
            return problem(422, "missing-file", f"{missing[0]['path']}: missing; send it", missing=missing)
        return answer_json({"job": job_json(state="queued"), "notices": []}, 201)

    def _keep(self, request: Received) -> Answer:
        sha256 = request.path.rpartition("/")[2]
        if hashlib.sha256(request.body).hexdigest() != sha256:
            return problem(422, "wrong-hash", f"{sha256}: another file arrived; send it again")
        self.files[sha256] = request.body
        return answer_json({"sha256": sha256, "bytes": len(request.body)}, 201)

    def _log(self, request: Received) -> Answer:
        content = self.logs[request.path.split("/")[3]]
        wanted = request.headers.get("range")
        if wanted is None:
            return Answer(200, content)
        if not content:
            return problem(416, "range", "bytes: beyond the end; ask later")
        first = max(0, len(content) - int(wanted.removeprefix("bytes=-")))
        return Answer(206, content[first:], {"Content-Range": f"bytes {first}-{len(content) - 1}/*"})


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: WebApi

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length", 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Received(self.command, parts.path, parse_qs(parts.query), headers, self.rfile.read(length))
        answer = self.api.answer(request)
        if answer.is_lost:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body[: answer.breaks_after])
        self.close_connection = self.close_connection or answer.breaks_after is not None

    do_GET = do_POST = do_PUT = _handle

    def log_message(self, format: str, *arguments: Any) -> None:
        """Stay silent."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent: clients leave amid an answer."""


@contextmanager
def serve_api(tls: ssl.SSLContext | None = None) -> Iterator[WebApi]:
    """Serve an API on a free port of loopback, until the context ends."""
    api = WebApi()
    handler = type("Handler", (_Handler,), {"api": api})
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        api.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield api
        finally:
            server.shutdown()
            thread.join()
