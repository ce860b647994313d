"""A person's calls to the aggregator that leads: every wait is limited, every error is one line."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from protos import jobs_pb2
from protos.jobs_pb2_grpc import JobsStub
from services.errors import Failed, NotYet, Refused, TiermeshError
from services.files.transfer import Metadata
from services.jobs.target import AggregatorTarget
from services.printable import printable
from services.protocol.plain_text import make_printable
from services.transport.access.enforcement import AUTHORIZATION_KEY, authorization
from services.transport.addresses import AddressRotation, is_loopback, split_address, split_addresses
from services.transport.obstacles import AGGREGATOR, NEVER_CONNECTED, Obstacle, find_obstacle
from services.transport.server import open_channel

_BAD_INPUT = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
    }
)

_DENIED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

Reply = TypeVar("Reply", bound=Message)
Own = TypeVar("Own", bound="AggregatorConnection")


class CallRefused(Refused):
    """Refusal of a call by the aggregator.

    Attributes:
        code: gRPC status of the answer.
    """

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Unreachable(Failed):
    """The aggregator, or another role that it needs for the answer, can't be reached at the moment."""


class Unanswered(Unreachable):
    """Lack of an answer to a request, which may have reached the aggregator all the same."""


class AggregatorConnection:
    """Async context manager that makes one person's calls to an aggregator.

    Of several addresses it calls the one that leads the cluster; the others are standbys, or dead.

    Args:
        target: the aggregator, and who calls.
        own_connection: whether it has TCP connections of its own; else this process has one to each address.

    Raises:
        Refused: an address is malformed or, in a call, the aggregator refused the request.
        NotYet: the aggregator has no room for it now, as the queue or its disk is full.
        Unreachable: there is no connection, or no answer in time.
        Failed: a call went wrong in another way.
    """

    def __init__(self, target: AggregatorTarget, *, own_connection: bool = False) -> None:
        addresses = split_addresses("--aggregator", target.address)
        self._addresses = AddressRotation(addresses)
        self._timeout_seconds = target.timeout_seconds
        self._security = target.security
        self._metadata = self._show(target.token)
        channels = [open_channel(each, target.security, own_connection=own_connection) for each in addresses]
        self._channels = dict(zip(addresses, channels, strict=True))
        self._stubs = dict(zip(addresses, map(JobsStub, channels), strict=True))

    async def __aenter__(self: Own) -> Own:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        for channel in self._channels.values():
            await channel.close()

    def for_caller(self: Own, token: str) -> Own:
        """Return a client that shows another token, empty for none; it uses the connections of this one."""
        client = copy.copy(self)
        client._addresses = copy.copy(self._addresses)
        client._metadata = self._show(token)
        return client

    def prefer(self, address: str) -> None:
        """Call this one of the addresses first from now on, which has answered another client."""
        self._addresses.start_with(address)

    def is_connected(self) -> bool:
        """Return whether there is a connection to one of the addresses, and begin to connect to the others."""
        states = [channel.get_state(try_to_connect=True) for channel in self._channels.values()]
        return grpc.ChannelConnectivity.READY in states

    @property
    def address(self) -> str:
        """`HOST:PORT` of the aggregator that is called."""
        return self._addresses.current

    @property
    def _channel(self) -> grpc.aio.Channel:
        return self._channels[self.address]

    @property
    def _stub(self) -> JobsStub:
        return self._stubs[self.address]

    def _show(self, token: str) -> Metadata:
        """Return the metadata that shows a token; refuse one that would leave this host in plain text."""
        if not token:
            return ()
        for address in () if self._security.tls else self._addresses:
            if not is_loopback(split_address("--aggregator", address)[0]):
                raise Refused(
                    f"--token-file: --aggregator {address} would get the token in plain text; give --tls-ca, or "
                    "an address of this host"
                )
        return ((AUTHORIZATION_KEY, authorization(token)),)

    async def _find_leader(self) -> None:
        """Select the address that answers for the cluster, starting with the one that did last."""
        count = len(self._addresses)
        if count == 1:
            return
        limit_seconds = self._timeout_seconds / count
        tried = []
        denied: CallRefused | None = None  # by an aggregator that does not let this person in
        while True:
            try:
                await self._stub.Status(
                    jobs_pb2.StatusRequest(), timeout=limit_seconds, metadata=self._metadata
                )
                self._addresses.answered()
                return
            except grpc.aio.AioRpcError as error:
                details = " ".join((error.details() or error.code().name.lower()).split())
                obstacle = await self._find_obstacle(details)
                if obstacle is not None:
                    reason = obstacle.cause
                elif error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                    reason = f"{self.address}: no answer within {limit_seconds:g} s"
                else:
                    reason = f"{self.address}: {details}"
                tried.append(printable(reason, max(50, 250 // count)))
                if error.code() in _DENIED:
                    denied = denied or CallRefused(error.code(), details)
            if self._addresses.failed():
                raise denied or Unreachable(
                    f"no aggregator answers for the cluster ({'; '.join(tried)}): start `tiermesh aggregator`, or name "
                    "others with --aggregator"
                )

    async def _find_obstacle(self, details: str) -> Obstacle | None:
        """Return why there was no connection for a call that ended with gRPC's `details`; None if there was one."""
        if not any(each in details for each in NEVER_CONNECTED):
            return None
        return await find_obstacle(self.address, self._security, AGGREGATOR)

    async def _ask(self, method: str, request: Message, reply: type[Reply]) -> Reply:
        await self._find_leader()
        try:
            answer = await getattr(self._stub, method)(
                request, timeout=self._timeout_seconds, metadata=self._metadata
            )
        except grpc.aio.AioRpcError as error:
            raise await self._explain(method, error) from None
        if not isinstance(answer, reply):
            raise self._no_reply(method, reply)
        make_printable(answer)
        return answer

    async def _stream(
        self,
        method: str,
        request: Message,
        reply: type[Reply],
        *,
        first_only: bool = False,
        limit_seconds: float | None = None,
    ) -> AsyncGenerator[Reply, None]:
        """Yield the messages of a stream; each one, or with `first_only` the first one, has a time limit."""
        await self._find_leader()
        call = getattr(self._stub, method)(request, metadata=self._metadata)
        limit = self._timeout_seconds if first_only else limit_seconds
        try:
            while True:
                message = await asyncio.wait_for(call.read(), limit)
                if message is grpc.aio.EOF:
                    return
                if not isinstance(message, reply):
                    raise self._no_reply(method, reply)
                make_printable(message)
                yield message
                limit = None if first_only else limit_seconds
        except grpc.aio.AioRpcError as error:
            raise await self._explain(method, error) from None
        except asyncio.TimeoutError:
            raise self._no_answer(method) from None
        finally:
            call.cancel()

    def _no_reply(self, method: str, reply: type[Message]) -> Failed:
        """Return the error for an answer that gRPC could not parse, for which it gives None."""
        return Failed(
            f"aggregator {self.address}: {method}: the answer is not a {reply.DESCRIPTOR.name} message; try again, and "
            "check that command and aggregator have the same version"
        )

    def _no_answer(self, method: str) -> Unanswered:
        return Unanswered(
            f"aggregator {self.address}: no answer to {method} within {self._timeout_seconds:g} s; look at its log, or "
            "raise --timeout-seconds"
        )

    async def _explain(self, method: str, error: grpc.aio.AioRpcError) -> TiermeshError:
        code, details = error.code(), " ".join((error.details() or "").split())
        if code in _BAD_INPUT:
            return CallRefused(code, details)
        if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            if (
                self._channel.get_state() == grpc.ChannelConnectivity.READY
            ):  # the aggregator's answer, not a connection error
                return Unanswered(f"aggregator {self.address}: {method}: {details}")
            obstacle = await self._find_obstacle(details)
            if obstacle is not None:
                return Unreachable(str(obstacle))
            kind = Unreachable if any(each in details for each in NEVER_CONNECTED) else Unanswered
            reason = details.rpartition("last error: ")[2]
            return kind(
                f"aggregator {self.address}: no connection ({reason}): try again, look at its log, or name another "
                "with --aggregator"
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return self._no_answer(method)
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
            return NotYet(f"aggregator {self.address}: {details}")
        if code == grpc.StatusCode.UNIMPLEMENTED:
            return Refused(
                f"the process at {self.address} is not an aggregator, or has another version: it does not know the "
                f"call {method}; correct --aggregator, or upgrade the older one"
            )
        return Failed(f"aggregator {self.address}: {method}: {code.name.lower()}: {details}")
