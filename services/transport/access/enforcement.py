"""Check of every call: the caller by certificate or token, and the permission by the table.

`admit_call` runs a call's handler for a caller that may call it. gRPC's server gets it by `AccessInterceptor`, the
tensor port by `guard_stream_handlers`, `/metrics` by `AccessControl.admit`. Calls that go on end soon after their
certificate or token was revoked or has expired.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from services.errors import Refused, TiermeshError
from services.printable import printable
from services.transport.access.identity import identify, show_names
from services.transport.access.permissions import PEOPLE, CallerKind, allowed_callers
from services.transport.access.rechecks import keep_checking
from services.transport.access.tokens import find_token, read_tokens
from services.transport.access.watched_files import WatchedFiles
from services.transport.ports.forwarded_port import CallerConnections
from services.transport.ports.log_limit import LogLimit
from services.transport.security import Security

log = logging.getLogger("tiermesh")

REFUSED_MESSAGE_SECONDS = 1.0
"""Longest wait for the first message of a call that is refused."""
AUTHORIZATION_KEY = "authorization"
"""gRPC metadata of a call by token: `Bearer TOKEN`."""
_BEARER = "Bearer "


class Denied(TiermeshError):
    """A call that is refused; the text is for the caller.

    Attributes:
        code: gRPC status of the answer.
    """

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True)
class Caller:
    """Caller of a method.

    Attributes:
        kind: kind of the caller; None where callers need no certificate or token, and everything is allowed.
        name: name in the certificate or token; empty without one.
        serial: serial number of the certificate, if there is one.
        token: the token, if one was shown.
        expires_seconds: Unix time from which on the certificate or token is not valid.
        bound_names: names that the certificate is bound to; empty for any.
    """

    kind: CallerKind | None = None
    name: str = ""
    serial: int | None = None
    token: str | None = None
    expires_seconds: float = float("inf")
    bound_names: tuple[str, ...] = ()

    @property
    def person(self) -> str:
        """Name of the person that calls; empty for a daemon, or where callers need no certificate or token."""
        return self.name if self.kind in PEOPLE else ""

    @property
    def voice(self) -> str:
        """First of the names that its certificate is bound to, so that no certificate counts twice; empty for none."""
        return min(self.bound_names, default="")

    def __str__(self) -> str:
        if self.kind is None:
            return "a caller without a role"
        shown = f"certificate {self.serial:x}" if self.serial is not None else "a token"
        return f"{self.kind.value} {self.name} ({shown})"


UNKNOWN_CALLER = Caller()
"""Caller where none needs a certificate or token: without TLS, and in tests of a servicer alone."""

_caller: ContextVar[Caller] = ContextVar("caller", default=UNKNOWN_CALLER)


def current_caller() -> Caller:
    """Return the caller of the call that this task serves."""
    return _caller.get()


_connections: ContextVar[CallerConnections | None] = ContextVar("connections", default=None)


def confirm_caller(context: Any) -> None:
    """Note that the caller of a call has shown that it belongs here: the limits for strangers end for it.

    Args:
        context: the call, which this task serves.
    """
    connections = _connections.get()
    if connections is not None:
        connections.confirm(context.peer())


def caller_address(context: Any) -> str:
    """Return the `HOST:PORT` of a caller.

    Args:
        context: the call, which this task serves.
    """
    connections, peer = _connections.get(), str(context.peer())
    return peer if connections is None else connections.address(peer)


@dataclass(frozen=True)
class Credentials:
    """Proof of identity that comes with a call.

    Attributes:
        tls: whether the connection is encrypted.
        certificate: certificate, PEM or DER, that the TLS library has verified; None without one.
        authorization: value of `AUTHORIZATION_KEY`; None without one.
    """

    tls: bool
    certificate: bytes | None = None
    authorization: str | None = None

    @classmethod
    def of_call(cls, context: Any) -> Credentials:
        """Return the credentials of a gRPC call, on either kind of server."""
        connection = context.auth_context()
        kind, pem = connection.get("transport_security_type"), connection.get("x509_pem_cert")
        metadata = dict(context.invocation_metadata() or ())
        value = metadata.get(AUTHORIZATION_KEY)
        return cls(
            tls=bool(kind) and bytes(kind[0]) != b"insecure",
            certificate=bytes(pem[0]) if pem else None,
            authorization=None if value is None else str(value),
        )


class AccessControl:
    """Decides who is let in on the ports of one server.

    Args:
        security: what callers have to show.
        clock: returns Unix time.

    Raises:
        Refused: a list of tokens or of revoked certificates can't be read.
    """

    def __init__(self, security: Security, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._log_limit = LogLimit()
        tokens = security.tokens
        self._revoked = security.revocations
        self._tokens = WatchedFiles([tokens], lambda: read_tokens(tokens)) if tokens else None

    def admit(self, method: str, shown: Credentials) -> Caller:
        """Return who makes a call, if they may.

        Args:
            method: key of the table of permissions.
            shown: what the caller shows.

        Raises:
            Denied: the caller is not known (UNAUTHENTICATED), or may not make this call (PERMISSION_DENIED).
        """
        try:
            caller = self._identify(shown)
            self.check_still_valid(caller)
            check_permission(method, caller)
        except Denied as denied:
            left_out = self._log_limit.suffix(denied.code)
            if left_out is not None:
                log.warning("refused a call of %s: %s%s", printable(method, 80), denied, left_out)
            raise
        return caller

    def check_still_valid(self, caller: Caller) -> None:
        """Check that what a caller has shown was not revoked and has not expired.

        Raises:
            Denied: it was, or it has.
        """
        if caller.serial is not None and self._revoked and caller.serial in self._revoked.content():
            raise _unauthenticated(f"{caller}: the certificate was revoked; show another one")
        if caller.token is not None and (
            self._tokens is None or find_token(self._tokens.content(), caller.token) is None
        ):
            raise _unauthenticated(
                "the token is not known here, or was revoked; ask an administrator for another"
            )
        if self._clock() >= caller.expires_seconds:
            raise _unauthenticated(
                f"{caller}: has expired; renew it (`tiermesh certs renew`, `tiermesh tokens issue`)"
            )

    @asynccontextmanager
    async def watch(self, caller: Caller) -> AsyncIterator[None]:
        """Cancel the block soon after its caller is not let in any longer (`keep_checking`).

        Raises:
            Denied: it was cancelled for this reason.
        """
        if caller.serial is None and caller.token is None:
            yield
            return
        async with keep_checking(partial(self.check_still_valid, caller)):
            yield

    def _identify(self, shown: Credentials) -> Caller:
        if shown.certificate is not None:
            try:
                found = identify(shown.certificate)
            except Refused as refused:
                raise _unauthenticated(str(refused)) from None
            if found.kind is None:
                raise _unauthenticated(
                    f"certificate {found.serial:x}: has no role of Tiermesh; issue one with `tiermesh certs issue`"
                )
            return Caller(
                found.kind,
                found.name,
                found.serial,
                expires_seconds=found.expires_seconds,
                bound_names=found.bound_names,
            )
        if shown.authorization is not None:
            return self._identify_token(shown.authorization)
        if not shown.tls:
            return UNKNOWN_CALLER
        raise _unauthenticated(
            "neither a certificate nor a token was shown; give --tls-cert and --tls-key, or --token-file"
        )

    def _identify_token(self, authorization: str) -> Caller:
        token = authorization.removeprefix(_BEARER)
        record = find_token(self._tokens.content(), token) if self._tokens else None
        if record is None:
            raise _unauthenticated(
                "the token is not known here, or was revoked; ask an administrator for another"
            )
        return Caller(record.kind, record.name, token=token, expires_seconds=record.expires_seconds)


def check_permission(method: str, caller: Caller) -> None:
    """Check the table of permissions.

    Raises:
        Denied: the caller may not do this.
    """
    allowed = allowed_callers(method)
    if caller.kind is not None and caller.kind not in allowed:
        expected = ", ".join(sorted(kind.value for kind in allowed)) or "none"
        raise Denied(
            grpc.StatusCode.PERMISSION_DENIED,
            f"{method[:80]}: not allowed for {caller}, only for {expected}; use a certificate or token with that role",
        )


def check_daemon(role: str, name: str) -> None:
    """Check that the caller of this task's call may be this daemon, by the role and the names in its certificate.

    Args:
        role: role that it says it has.
        name: name that it says it has, or had when it opened the session that the call belongs to.

    Raises:
        Denied: its certificate is for another role, or for other names.
    """
    caller = current_caller()
    if caller.kind is not None and caller.kind.value != role:
        raise Denied(
            grpc.StatusCode.PERMISSION_DENIED,
            f"Hello says role {role[:20]!r}, but its sender is {caller}; give it the certificate of its role",
        )
    if caller.bound_names and name not in caller.bound_names:
        raise Denied(
            grpc.StatusCode.PERMISSION_DENIED,
            f"{role} {printable(name, 40)} shows a certificate that is bound to {show_names(caller.bound_names)}; "
            f"start it with such a --name, or give it a certificate of its own",
        )


def _unauthenticated(text: str) -> Denied:
    return Denied(grpc.StatusCode.UNAUTHENTICATED, text)


def authorization(token: str) -> str:
    """Return the metadata value that shows a token."""
    return f"{_BEARER}{token}"


@asynccontextmanager
async def admit_call(
    access: AccessControl, method: str, context: Any, *, awaits_message: bool = False
) -> AsyncIterator[None]:
    """Run a call's handler if its caller may make the call; abort the call otherwise, and once it may no longer.

    Args:
        access: decides.
        method: `/package.Service/Method`.
        context: the call, of either kind of server.
        awaits_message: whether to wait for the caller's first message before it is refused. A grpcio client that is
            refused while it writes reports an internal error in place of the reason.
    """
    try:
        try:
            caller = access.admit(method, Credentials.of_call(context))
        except Denied:
            if awaits_message:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(context.read(), REFUSED_MESSAGE_SECONDS)
            raise
        _caller.set(caller)  # each call has a task of its own
        async with access.watch(caller):
            yield
    except Denied as denied:
        await context.abort(denied.code, str(denied))


class AccessInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Admits the calls of a gRPC server, those of health and reflection too.

    Callers are confirmed once they have shown a certificate or token. Where nobody has to show one, a complete request
    confirms them, or the handler of a stream (`confirm_caller`).

    Args:
        access: decides.
        connections: the server's connections.
    """

    def __init__(self, access: AccessControl, connections: CallerConnections) -> None:
        self._access = access
        self._connections = connections

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        """Return the handler of a call, behind the check; None if there is none."""
        handler = await continuation(details)
        return None if handler is None else self._guard(handler, details.method)

    def _guard(self, handler: Any, method: str) -> Any:
        inner = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary

        awaits_message = bool(handler.request_streaming)

        def admitted(context: Any) -> None:
            _connections.set(self._connections)
            if current_caller().kind is not None or not awaits_message:
                confirm_caller(context)

        async def answer(request: Any, context: Any) -> Any:
            async with admit_call(self._access, method, context, awaits_message=awaits_message):
                admitted(context)
                return await inner(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            async with admit_call(self._access, method, context, awaits_message=awaits_message):
                admitted(context)
                async for message in inner(request, context):
                    yield message

        guarded = stream if inspect.isasyncgenfunction(inner) else answer
        make = {
            (True, True): grpc.stream_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (False, False): grpc.unary_unary_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return make(guarded, handler.request_deserializer, handler.response_serializer)


StreamHandler = Callable[[Any], Awaitable[None]]


def guard_stream_handlers(
    handlers: Mapping[str, StreamHandler], access: AccessControl
) -> dict[str, StreamHandler]:
    """Return the handlers of a tensor port behind the check, by method."""

    def guard(method: str, handler: StreamHandler) -> StreamHandler:
        async def serve(stream: Any) -> None:
            async with admit_call(access, method, stream):
                await handler(stream)

        return serve

    return {method: guard(method, handler) for method, handler in handlers.items()}
