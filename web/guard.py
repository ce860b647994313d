"""What every request passes before its path is looked up: names, origin, token, rates, and the limits of its body.

A page of another site can make a browser on this host send requests here, so these checks hold on loopback, too. The
names that `Host` may have keep out pages that have a name of their own point here (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from services.errors import TiermeshError, name_internal_error
from services.json_text import JsonKind, parse_json
from services.token_bucket import TokenBucket
from services.transport.access.tokens import is_token
from services.transport.ports.admission import Ticket
from services.transport.ports.log_limit import LogLimit
from web.problems import Problem, problem_of, refused

log = logging.getLogger("tiermesh.web")

Scope: TypeAlias = "dict[str, Any]"
Receive: TypeAlias = "Callable[[], Any]"
Send: TypeAlias = "Callable[[Any], Any]"
App: TypeAlias = "Callable[[Any, Any, Any], Any]"

PUBLIC_PATHS = frozenset({"/v1/health", "/v1/openapi.json"})
"""Paths that need no token."""
REQUEST_JSON = JsonKind("request", 1 << 20, 50_000)
"""Body of a POST."""
JSON_SECONDS = 15.0
"""Longest wait for such a body."""
MOST_ANSWERS = 1024
MOST_ANSWERS_OF_TOKEN = 256
REQUESTS_PER_SECOND = 50.0
REQUESTS_AT_ONCE = 200
WRONG_TOKENS_PER_SECOND = 1.0
WRONG_TOKENS_AT_ONCE = 30
"""Requests with tokens that were not accepted before, and are not now, of one address."""

_MOST_CALLERS = 10_000
_DRAINED_BYTES = 4 << 20
_DRAIN_SECONDS = 2.0


@dataclass
class _Caller:
    """A token, or an address, and what it may still do."""

    bucket: TokenBucket
    answers: int = 0
    accepted: bool = False


@dataclass
class _Callers:
    """The callers that were seen last."""

    per_second: float
    at_once: int
    known: OrderedDict[str, _Caller] = field(default_factory=OrderedDict)

    def get(self, name: str) -> _Caller:
        """Return a caller; the one that was seen least recently, and has no answer under way, may go for it."""
        caller = self.known.pop(name, None)
        if caller is None:
            caller = _Caller(TokenBucket(self.per_second, self.at_once))
            if len(self.known) >= _MOST_CALLERS:
                oldest = next(each for each, found in self.known.items() if not found.answers)
                del self.known[oldest]
        self.known[name] = caller
        return caller


class Guard:
    """ASGI app around another one, which gets only the requests that are to be served.

    `scope["state"]["token"]` is the token to show the aggregator; empty for none.

    Args:
        app: the other app.
        hosts: names and addresses that `Host` may have, in lower case.
        own_token: token of this daemon, in place of which none is shown to the aggregator; empty if it has none.
        check_token: asks the aggregator whether it lets the owner of another token in; raises TiermeshError if not.
        count: counts answers, by status.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        app: App,
        hosts: Collection[str],
        own_token: str,
        check_token: Callable[[str], Awaitable[None]],
        count: Callable[[int], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._own_token = own_token
        self._check_token = check_token
        self._count = count
        self._clock = clock
        self._tokens = _Callers(REQUESTS_PER_SECOND, REQUESTS_AT_ONCE)
        self._addresses = _Callers(WRONG_TOKENS_PER_SECOND, WRONG_TOKENS_AT_ONCE)
        self._answers = 0
        self._log_limit = LogLimit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        body = _Body(scope, receive)
        begun = is_refused = False

        async def send_on(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(message["status"])
                if message["status"] >= 400:
                    await body.drain()
                    if is_refused or not body.is_complete:
                        message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._serve(scope, body.receive, send_on)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                suffix = self._log_limit.suffix(type(error).__name__)
                if suffix is not None:
                    log.error("%s%s", name_internal_error(error), suffix)
                    log.debug("traceback of the error above", exc_info=error)
            if begun:
                return  # uvicorn ends the connection, so that the caller sees that the answer is not complete
            is_refused = True
            await send_problem(problem, send_on)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _single_headers(scope)
        self._check_place(headers)
        scope["state"]["token"] = ""
        if scope["path"] in PUBLIC_PATHS:
            await self._app(scope, receive, send)
            return
        token = _token_of(headers)
        caller = self._tokens.get(hashlib.sha256(token.encode()).hexdigest())
        address = self._addresses.get(scope["client"][0] if scope["client"] else "")
        now = self._clock()
        if not caller.accepted:
            _check_rate(address.bucket, now, "requests with new tokens of this address")
        _check_rate(caller.bucket, now, "requests of this token")
        caller.bucket.take(1, now)

        async def note(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:  # revoked meanwhile
                caller.accepted = False
                address.bucket.take(1, now)
            await send(message)

        with self._counted(caller):
            if not (self._own_token and hmac.compare_digest(token, self._own_token)):
                scope["state"]["token"] = token
                if not caller.accepted:  # nothing is read or done for a stranger
                    try:
                        await self._check_token(token)
                    except TiermeshError as error:
                        if problem_of(error).status == 401:
                            address.bucket.take(1, now)
                        raise
            self._accept(scope, caller)
            receive = await _checked_body(scope, headers, receive)
            await self._app(scope, receive, note)

    def _check_place(self, headers: dict[str, str]) -> None:
        """Check that a request is meant for this server, and is not sent by the page of another one."""
        host = headers.get("host", "")
        name = _host_name(host)
        if name not in self._hosts:
            raise refused(
                "Host",
                host,
                "a name of this server",
                "use one of its names, or start it with --allow-host",
                status=421,
                kind="host",
            )
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            raise refused(
                "Origin",
                origin,
                f"none, or that of {host}",
                "send it from no page",
                status=403,
                kind="forbidden",
            )

    def _accept(self, scope: Scope, caller: _Caller) -> None:
        caller.accepted = True
        ticket = scope["state"].get("ticket")
        if ticket is not None:
            cast(Ticket, ticket).confirm()

    @contextmanager
    def _counted(self, caller: _Caller) -> Any:
        """Count an answer that is under way, unless there are too many."""
        for count, most, whose in (
            (caller.answers, MOST_ANSWERS_OF_TOKEN, "of this token"),
            (self._answers, MOST_ANSWERS, "of all tokens"),
        ):
            if count >= most:
                raise _too_many(f"answers {whose} under way: {count}, expected less than {most}", 1)
        caller.answers += 1
        self._answers += 1
        try:
            yield
        finally:
            caller.answers -= 1
            self._answers -= 1


async def send_problem(problem: Problem, send: Send) -> None:
    """Send a problem as the answer."""
    body = problem.body()
    headers = {**problem.headers, "content-length": str(len(body))}
    await send(
        {
            "type": "http.response.start",
            "status": problem.status,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
    )
    await send({"type": "http.response.body", "body": body})


class _Body:
    """Body of a request.

    Args:
        scope: the request.
        receive: gives its messages.

    Attributes:
        is_complete: whether all of it has come.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._waits = any(name == b"expect" for name, _ in scope["headers"])  # until it is asked for
        self.is_complete = False

    async def receive(self) -> Any:
        """Return the next message."""
        self._waits = False
        message = await self._receive()
        self.is_complete = self.is_complete or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read some of the rest, since a caller that is cut off while it writes does not see the answer."""

        async def read() -> None:
            size = 0
            while size < _DRAINED_BYTES and not self.is_complete:
                size += len((await self.receive()).get("body", b""))

        if not self._waits:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(read(), _DRAIN_SECONDS)


def _single_headers(scope: Scope) -> dict[str, str]:
    """Return the headers that are checked here, each of which may be there once."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        if key in ("host", "origin", "authorization", "content-type", "content-length", "content-encoding"):
            if key in found:
                raise Problem(400, "malformed", f"{key}: given twice, expected once; send it once")
            found[key] = value.decode("latin-1").strip()
    return found


def _host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "") if "@" not in host and "/" not in host else ""
    except ValueError:
        return ""


def _token_of(headers: dict[str, str]) -> str:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not is_token(token.strip()):
        found = "no token" if "authorization" not in headers else "something else"
        raise Problem(
            401,
            "unauthenticated",
            f"Authorization: {found} given, expected `Bearer TOKEN`; show a token from `tiermesh tokens issue`, or the "
            "one in the --token-file of `tiermesh web`",
            headers={"www-authenticate": "Bearer"},
        )
    return token.strip()


def _check_rate(bucket: TokenBucket, now_seconds: float, what: str) -> None:
    wait = bucket.seconds_until(1, now_seconds)
    if wait > 0:
        raise _too_many(f"{what}: too many", wait)


def _too_many(text: str, wait_seconds: float) -> Problem:
    seconds = max(1, round(wait_seconds + 0.5))
    return Problem(429, "rate", f"{text}; try again in {seconds} s", headers={"retry-after": str(seconds)})


async def _checked_body(scope: Scope, headers: dict[str, str], receive: Receive) -> Receive:
    """Return what gives the body of a request: a POST's is read and parsed here, a PUT's is left to its reader."""
    if scope["method"] not in ("POST", "PUT"):
        return receive
    wanted = "application/octet-stream" if scope["method"] == "PUT" else "application/json"
    # A page of another site can send a POST without a type or with a form's, but no PUT without being let to.
    given = headers.get("content-type", wanted if scope["method"] == "PUT" else "")
    charset = given.partition(";")[2].replace(" ", "").lower()
    if given.partition(";")[0].strip().lower() != wanted or charset not in ("", "charset=utf-8"):
        raise refused("Content-Type", given or "none", wanted, "send the body as such", 415, "media-type")
    if "content-encoding" in headers:
        raise refused(
            "Content-Encoding",
            headers["content-encoding"],
            "none",
            "send the body as it is",
            415,
            "media-type",
        )
    if scope["method"] == "PUT":
        return receive
    body = await _read_json(receive)
    is_read = False

    async def replay() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _read_json(receive: Receive) -> bytes:
    try:
        body = await asyncio.wait_for(_read_all(receive, REQUEST_JSON.limit_bytes), JSON_SECONDS)
    except asyncio.TimeoutError:
        text = f"body: not all of it came within {JSON_SECONDS:g} s; send it at once"
        raise Problem(408, "malformed", text) from None
    try:
        parse_json(body, REQUEST_JSON)
    except ValueError as error:
        raise Problem(400, "malformed", f"body: no JSON in UTF-8 ({error!s:.200}); correct it") from None
    return body


async def _read_all(receive: Receive, most_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Problem(400, "malformed", "body: ended early; send all of it")
        body += message["body"]
        if len(body) > most_bytes:
            raise refused(
                "body",
                f"more than {most_bytes} bytes",
                f"at most {most_bytes}",
                "send files by PUT",
                413,
                "too-large",
            )
        if not message["more_body"]:
            return bytes(body)
