"""The server's end of every data stream: chunks come in, the newest weights go out, until the session ends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import grpc

from plane.streams.newest_weights import NewestWeights
from plane.streams.shared_memory_link import ServerTensorLink
from services.errors import Refusal, Refused
from services.printable import printable
from services.tensors.chunk_messages import Message, TensorChunk
from services.transport.access.enforcement import confirm_caller
from services.transport.links import INCARNATION_KEY, LinkClosed, run_until_first_ends
from services.transport.mailbox import Mailbox

log = logging.getLogger("tiermesh")

_MAX_INCARNATION_CHARACTERS = 100


def read_incarnation(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """Return the incarnation that a data stream names in its metadata; empty if it names none.

    A longer one than a process has is cut: it belongs to nobody, but errors quote it.
    """
    return printable(
        str(dict(context.invocation_metadata() or ()).get(INCARNATION_KEY, "")), _MAX_INCARNATION_CHARACTERS
    )


class ExchangeServer:
    """Server of data streams.

    Args:
        newest: the newest weights, which keep a list of the streams' links.
        shared_memory: whether payloads may go through memory shared with a peer.
        count: called with the change in the number of links that use shared memory.
    """

    def __init__(
        self,
        newest: NewestWeights,
        *,
        shared_memory: bool,
        count: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._newest = newest
        self._shared_memory = shared_memory
        self._count = count

    async def serve(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        peer: str,
        mailbox: Mailbox[Any],
        *,
        wait_for_room: Callable[[str], Awaitable[None]],
        take: Callable[[list[TensorChunk]], Refusal | None],
        send: Callable[[ServerTensorLink], Coroutine[Any, Any, None]],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        """Serve one data stream until it ends. The control stream of the same session ends with it.

        Args:
            context: the call.
            peer: role and name of the peer, for the log.
            mailbox: mailbox of the peer's control stream.
            wait_for_room: waits until another chunk of a job can be taken.
            take: takes the chunks of one message, and returns why the first stale one is stale, if there is one.
            send: sends weights until cancelled.
            opened: called when the peer knows that the stream is open.
        """
        link: ServerTensorLink | None = None
        try:
            link = ServerTensorLink(
                peer, context.invocation_metadata(), enabled=self._shared_memory, count=self._count
            )
            self._newest.links.append(link)
            confirm_caller(context)
            await context.send_initial_metadata(link.metadata)
            opened()
            await run_until_first_ends(
                self._receive(context, peer, link, wait_for_room, take), send(link), mailbox.wait_closed()
            )
        except (Refused, ValueError) as refused:
            reason = f"refused a chunk: {refused}"
            log.warning("%s: %s", peer, reason)
            mailbox.close(reason, grpc.StatusCode.INVALID_ARGUMENT)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(refused))
        except LinkClosed as closed:
            await context.abort(closed.code, str(closed))
        finally:
            mailbox.close("its data stream ended")
            if link is not None:
                self._newest.links.remove(link)
                link.close()

    async def _receive(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        peer: str,
        link: ServerTensorLink,
        wait_for_room: Callable[[str], Awaitable[None]],
        take: Callable[[list[TensorChunk]], Refusal | None],
    ) -> None:
        last_refusal: Refusal | None = None
        while isinstance(message := await context.read(), Message):
            chunks = link.deserialize(message)
            # Wait before the chunks are taken, so that they still count in their sender's window.
            await wait_for_room(chunks[0].header.job)
            refusal = take(chunks)
            if refusal is not None and refusal != last_refusal:  # logged once, not for every chunk
                log.info("%s: dropped a chunk: %s", peer, refusal)
                last_refusal = refusal
