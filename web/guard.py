"""What every request passes before its path is looked up: names, origin, token, rates, and the limits of its body.

A page of another site can make a browser on this host send requests here, so these checks hold on loopback, too. The
names that `Host` may have keep out pages that have a name of their own point here (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from services.errors import TiermeshError, name_internal_error
from services.token_bucket import TokenBucket
from services.transport.ports.admission import Ticket
from services.transport.ports.log_limit import LogLimit
from web.bodies import Body, Receive, Scope, checked_body
from web.credentials import check_place, end_session, find_token, read_headers
from web.problems import Problem, problem_of

log = logging.getLogger("tiermesh.web")

Send: TypeAlias = "Callable[[Any], Any]"
App: TypeAlias = "Callable[[Any, Any, Any], Any]"

MOST_ANSWERS = 1024
MOST_ANSWERS_OF_TOKEN = 256
REQUESTS_PER_SECOND = 50.0
REQUESTS_AT_ONCE = 200
WRONG_TOKENS_PER_SECOND = 1.0
WRONG_TOKENS_AT_ONCE = 30
"""Requests with tokens that were not accepted before, and are not now, of one address."""

_MOST_CALLERS = 10_000


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

    `scope["state"]["token"]` is the token to show the aggregator; empty for none. `shown_token` beside it is the
    caller's.

    Args:
        app: the other app.
        public_paths: paths that need no token.
        hosts: names and addresses that `Host` may have, in lower case.
        own_token: token of this daemon, in place of which none is shown to the aggregator; empty if it has none.
        check_token: asks the aggregator whether it lets the owner of another token in; raises TiermeshError if not.
        count: counts answers, by status.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        app: App,
        public_paths: Collection[str],
        hosts: Collection[str],
        own_token: str,
        check_token: Callable[[str], Awaitable[None]],
        count: Callable[[int], None] = lambda status: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._public_paths = frozenset(public_paths)
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
        body = Body(scope, receive)
        begun = is_refused = False
        scope["state"] |= {"token": "", "shown_token": "", "session_end": ""}

        async def send_on(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                self._count(message["status"])
                headers = message["headers"]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers = [*headers, (b"cache-control", b"no-store")]
                if message["status"] == 401 and scope["state"]["session_end"]:
                    headers = [*headers, (b"set-cookie", scope["state"]["session_end"].encode())]
                if message["status"] >= 400:
                    await body.drain()
                    if is_refused or not body.is_complete:
                        headers = [*headers, (b"connection", b"close")]
                message["headers"] = headers
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
        headers = read_headers(scope)
        check_place(headers, self._hosts)
        if scope["path"] in self._public_paths:
            await self._app(scope, receive, send)
            return
        token, by_cookie = find_token(headers)
        scope["state"]["shown_token"] = token
        if by_cookie:
            scope["state"]["session_end"] = end_session(headers["host"])
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
            receive = await checked_body(scope, headers, receive)
            await self._app(scope, receive, note)

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


def _check_rate(bucket: TokenBucket, now_seconds: float, what: str) -> None:
    wait = bucket.seconds_until(1, now_seconds)
    if wait > 0:
        raise _too_many(f"{what}: too many", wait)


def _too_many(text: str, wait_seconds: float) -> Problem:
    seconds = max(1, round(wait_seconds + 0.5))
    return Problem(429, "rate", f"{text}; try again in {seconds} s", headers={"retry-after": str(seconds)})
