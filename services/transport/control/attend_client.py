"""The client's end of every control stream: connect, send Hello, check the answer, run the stream, connect again.

What differs between a worker, an aggregator at its optimizer and an aggregator at a shard is an `Attendant`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

from services.errors import Refusal, Refused
from services.protocol.checksums import encode_with_checksum
from services.protocol.versions import LAST_EPOCH
from services.transport.backoff import Backoff
from services.transport.checked_channel import open_checked_channel
from services.transport.control.control_streams import ControlReader, ControlStream
from services.transport.limits import HELLO_SECONDS
from services.transport.links import EPOCH_KEY, LinkClosed, raise_call_status, write_to_call
from services.transport.obstacles import NEVER_CONNECTED, Peer, find_obstacle
from services.transport.security import Security

log = logging.getLogger("tiermesh")

SentT = TypeVar("SentT", bound=Message)
ReceivedT = TypeVar("ReceivedT", bound=Message)
AnswerT = TypeVar("AnswerT", bound=Message)

LINK_ERRORS = (grpc.aio.AioRpcError, asyncio.TimeoutError, LinkClosed)
"""Errors after which a client connects again."""


@dataclass(frozen=True)
class AttendMethod(Generic[ReceivedT, AnswerT]):
    """An Attend method as its clients see it.

    Attributes:
        path: `/package.Service/Attend`.
        received: type of the server's messages.
        unwrap: returns a message's content; None if this version does not know it.
        answer: type of the content that answers Hello.
        peer: the role that serves it.
    """

    path: str
    received: type[ReceivedT]
    unwrap: Callable[[ReceivedT], Any]
    answer: type[AnswerT]
    peer: Peer


@dataclass(frozen=True)
class OpenLink(Generic[SentT, ReceivedT, AnswerT]):
    """A connection whose Hello was answered.

    Attributes:
        stream: the control stream.
        answer: the answer to Hello.
        message: the message that the answer came in.
        channel: the channel of the stream.
    """

    stream: ControlStream[SentT, ReceivedT]
    answer: AnswerT
    message: ReceivedT
    channel: grpc.aio.Channel


@dataclass(frozen=True)
class LinkEnd:
    """The end of a link, or of an attempt to connect.

    Attributes:
        reason: one line for people.
        obeyed_epoch: see `HelloRefusal`, if the peer refused Hello for that; else 0.
        ended_here: whether this end closed the link, because the peer was silent or wrong.
        is_news: whether the previous end at this address had another reason.
    """

    reason: str
    obeyed_epoch: int
    ended_here: bool
    is_news: bool


class Attendant(Protocol[SentT, ReceivedT, AnswerT]):
    """Part of the client that depends on its role. `str()` of it names the peer, for the log."""

    @property
    def address(self) -> str:
        """`HOST:PORT` of the next attempt."""

    def begin(self) -> SentT:
        """Begin an attempt to connect, and return the message with Hello."""

    def check_answer(self, link: OpenLink[SentT, ReceivedT, AnswerT]) -> Refusal | None:
        """Return why the peer's answer to Hello is not accepted; None if it is."""

    async def attend(self, link: OpenLink[SentT, ReceivedT, AnswerT]) -> None:
        """Run the stream of a link whose answer was accepted, until it ends."""

    def ended(self, end: LinkEnd) -> bool:
        """Handle the end, and return whether to wait before the next attempt."""


async def keep_attending(
    attendant: Attendant[SentT, ReceivedT, AnswerT],
    method: AttendMethod[ReceivedT, AnswerT],
    security: Security,
    backoff: Backoff,
    hello_seconds: float = HELLO_SECONDS,
) -> None:
    """Keep a control stream open until cancelled: whenever it ends, open it again.

    Args:
        attendant: what is particular to this client.
        method: the method to call.
        security: own certificates and trusted authorities.
        backoff: waiting times between attempts.
        hello_seconds: longest wait for the answer to Hello.
    """
    logged: dict[str, str] = {}  # last reason by address, so that each is logged once in a row
    causes: dict[tuple[str, str], str] = {}  # by address and gRPC's text, so that each is looked for once
    while True:
        address, error = attendant.address, None
        try:
            await _attend(attendant, method, address, security, hello_seconds)
        except LINK_ERRORS as raised:
            error = raised
        reason = _describe(error, method, address, hello_seconds)
        if any(each in reason for each in NEVER_CONNECTED):
            if (address, reason) not in causes:
                causes = {(address, reason): await _find_cause(address, security, method.peer, reason)}
            reason = causes[address, reason]
        is_news, peer = reason != logged.get(address), str(attendant)
        pause = attendant.ended(LinkEnd(reason, _obeyed_epoch(error), isinstance(error, LinkClosed), is_news))
        if is_news:
            log.warning("%s; trying again", reason if address in reason else f"{peer}: {reason}")
            logged[address] = reason
        if pause:
            await backoff.wait()


async def _attend(
    attendant: Attendant[SentT, ReceivedT, AnswerT],
    method: AttendMethod[ReceivedT, AnswerT],
    address: str,
    security: Security,
    hello_seconds: float,
) -> None:
    async with open_checked_channel(address, security) as channel:
        call = channel.stream_stream(method.path, request_serializer=encode_with_checksum)()
        reader = ControlReader(call.read, method.received)
        message = await send_hello(call, attendant.begin(), reader, hello_seconds)
        answer = method.unwrap(message)
        if not isinstance(answer, method.answer):
            found = "empty" if answer is None else type(answer).__name__
            raise LinkClosed(f"the first message is {found}, expected {method.answer.DESCRIPTOR.name}")
        stream: ControlStream[SentT, ReceivedT] = ControlStream(
            reader, lambda each: write_to_call(call, each), lambda: raise_call_status(call)
        )
        link = OpenLink(stream, answer, message, channel)
        refusal = attendant.check_answer(link)
        if refusal is not None:
            raise LinkClosed(str(refusal))
        await attendant.attend(link)


async def send_hello(
    call: Any, hello: Message, answers: ControlReader[ReceivedT], limit_seconds: float = HELLO_SECONDS
) -> ReceivedT:
    """Send Hello as the first message of a client's stream, and return the server's answer.

    The limit covers connecting, too: a frozen peer still accepts connections, and gRPC itself would wait 20 s for its
    first byte.

    Args:
        call: the stream.
        hello: the message.
        answers: reader of the stream.
        limit_seconds: longest wait for the answer.

    Raises:
        asyncio.TimeoutError: there was no answer in time.
        grpc.aio.AioRpcError: the stream ended with another status than OK.
        LinkClosed: the stream ended with OK, or the answer was damaged.
    """

    async def write_and_read() -> ReceivedT | None:
        await write_to_call(call, hello)
        return await answers.next()

    answer = await asyncio.wait_for(write_and_read(), limit_seconds)
    if answer is None:
        await raise_call_status(call)
        raise LinkClosed("the peer ended the stream")
    return answer


def _obeyed_epoch(error: Exception | None) -> int:
    """Return the epoch in the status of a refused Hello; 0 if there is none."""
    metadata = error.trailing_metadata() if isinstance(error, grpc.aio.AioRpcError) else ()
    text = str(dict(metadata or ()).get(EPOCH_KEY, ""))
    return int(text) if text.isdecimal() and len(text) <= len(str(LAST_EPOCH)) else 0


async def _find_cause(address: str, security: Security, peer: Peer, reason: str) -> str:
    """Return why there is no connection, and what to do about it; gRPC's reason if nothing else is found."""
    try:
        return str(await find_obstacle(address, security, peer) or reason)
    except Refused:
        return reason


def _describe(
    error: Exception | None, method: AttendMethod[Any, Any], address: str, hello_seconds: float
) -> str:
    """Return one line for people about the end of a link."""
    if error is None:
        return "the peer ended the stream"
    if isinstance(error, asyncio.TimeoutError):
        return f"no {method.answer.DESCRIPTOR.name} within {hello_seconds:g} s"
    if isinstance(error, grpc.aio.AioRpcError):
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return f"the process at {address} is not {method.peer.noun}: check {method.peer.option}"
        return error.details() or str(error.code().name)
    return str(error)
