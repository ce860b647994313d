"""Calls of a role's gRPC methods without a connection, through the handlers and checks that its port has."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from services.printable import FAILURE_CHARACTERS, LINE_CHARACTERS
from services.protocol.bounds import MESSAGE_LIMIT_BYTES
from services.transport.access.enforcement import AccessControl, AccessInterceptor, guard_stream_handlers
from services.transport.ports.forwarded_port import CallerConnections
from services.transport.request_handlers import RequestParsingHandler
from services.transport.security import Security

LIMIT_SECONDS = 5.0
"""Longest work of a call after its caller has gone."""
PATIENCE_SECONDS = 0.05
"""How long a caller waits for the next answer of a call that may have no end, such as Watch."""
MOST_ANSWERS = 5000

REFUSED = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
    }
)
"""Statuses of input that is refused in a line of at most 300 characters; a failure may list several causes."""
_CRASHED = frozenset({grpc.StatusCode.OK, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN})

Metadata = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class _Details:
    """What a server knows of a call before it is handled: `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Metadata


class Call:
    """A call as its handler sees it: `grpc.aio.ServicerContext`.

    Args:
        messages: messages of the caller.
        metadata: metadata of the call.
        stays: whether the caller keeps the call open after its last message.

    Attributes:
        answered: event that is set by the first answer.
        status: status and details that ended the call; None if it ended with OK, or has not ended.
        has_left: whether the caller has gone.
    """

    def __init__(self, messages: Iterable[bytes], metadata: Metadata = (), *, stays: bool = False) -> None:
        self.answered = asyncio.Event()
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.has_left = False
        self.serialize: Any = None  # the method's serializer of answers
        self._messages = deque(messages)
        self._metadata = tuple(metadata)
        self._stays = stays
        self.moves = 0  # messages read and answers written
        self._answers = 0

    async def read(self) -> Any:
        """Return the caller's next message."""
        await asyncio.sleep(0)
        if self._messages:
            self.moves += 1
            return self._messages.popleft()
        if self._stays:
            await asyncio.Event().wait()
        return grpc.aio.EOF

    async def requests(self) -> AsyncIterator[bytes]:
        """Yield the caller's messages."""
        while isinstance(message := await self.read(), bytes):
            yield message

    async def write(self, *parts: Any) -> None:
        """Take an answer, and check that it can be sent."""
        await asyncio.sleep(0)
        content = self.serialize(parts[0]) if isinstance(parts[0], Message) else b"".join(map(bytes, parts))
        assert len(content) <= MESSAGE_LIMIT_BYTES, f"an answer of {len(content)} bytes"
        self.moves += 1
        self._answers += 1
        assert self._answers <= MOST_ANSWERS
        self.answered.set()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Metadata = ()) -> NoReturn:
        """End the call, and check that the reason is one short line."""
        assert code not in _CRASHED, f"{code}: {details}"
        limit = LINE_CHARACTERS if code in REFUSED else FAILURE_CHARACTERS
        assert details.isprintable() and 0 < len(details) <= limit, f"{code}, {len(details)}: {details!r}"
        self.status = code, details
        raise grpc.aio.AbortError(details)

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Take the answer's metadata."""
        assert all(value.isprintable() for _, value in metadata)

    def invocation_metadata(self) -> Metadata:
        """Return the caller's metadata."""
        return self._metadata

    def auth_context(self) -> dict[str, list[bytes]]:
        """Return what TLS says about the caller: nothing, without TLS."""
        return {}

    def cancelled(self) -> bool:
        """Return whether the caller has gone."""
        return self.has_left

    def peer(self) -> str:
        """Return the caller's address."""
        return "ipv4:192.0.2.7:1234"


class Port:
    """The methods of a role as its gRPC server has them, without the server.

    Args:
        handlers: handlers of the role's services.
    """

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._handlers = [RequestParsingHandler(each) for each in handlers]
        self._access = AccessInterceptor(AccessControl(Security()), CallerConnections())

    async def _find(self, details: Any) -> Any:
        return next(filter(None, (each.service(details) for each in self._handlers)), None)

    async def serve(self, method: str, call: Call) -> None:
        """Serve a call until it ends or is aborted. Any other error of its handler is raised."""
        handler = await self._access.intercept_service(
            self._find, _Details(method, call.invocation_metadata())
        )
        assert handler is not None, f"nobody serves {method}"
        call.serialize = handler.response_serializer
        inner = handler.stream_stream or handler.stream_unary or handler.unary_stream or handler.unary_unary
        request: Any = call.requests() if handler.request_streaming else await call.read()
        if not handler.request_streaming and not isinstance(request, bytes):
            return  # the caller left before it asked
        try:
            result = inner(request, call)
            if inspect.isasyncgen(result):
                async for answer in result:
                    await call.write(answer)
            elif (answer := await result) is not None:
                await call.write(answer)
        except grpc.aio.AbortError:
            assert call.status is not None

    async def try_call(self, method: str, call: Call) -> None:
        """Serve a call whose caller leaves if it does not end soon, and check that it ends then.

        Raises:
            AssertionError: it does not end, or its handler fails.
        """
        task = asyncio.ensure_future(self.serve(method, call))
        await settle(call, task)
        call.has_left = True
        task.cancel()
        await asyncio.wait((task,), timeout=LIMIT_SECONDS)
        assert task.done(), f"{method} goes on after its caller has left"
        if not task.cancelled():
            task.result()


class TensorPort(Port):
    """The methods of a role's tensor port.

    Args:
        handlers: handlers of the methods.
    """

    def __init__(self, handlers: Mapping[str, Callable[[Any], Awaitable[None]]]) -> None:
        super().__init__(())
        self._guarded = guard_stream_handlers(handlers, AccessControl(Security()))

    async def serve(self, method: str, call: Call) -> None:
        """Serve a call until it ends or is aborted. Any other error of its handler is raised."""
        try:
            await self._guarded[method](call)
        except grpc.aio.AbortError:
            assert call.status is not None


async def settle(call: Call, task: asyncio.Task[None]) -> None:
    """Wait until a call has ended, or for as long as it reads or writes messages."""
    moves = -1
    while moves < call.moves and not task.done():
        moves = call.moves
        await asyncio.wait((task,), timeout=PATIENCE_SECONDS)
