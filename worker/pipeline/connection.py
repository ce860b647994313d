"""One connection of a link: what is to be sent on it next, and what has come."""

from __future__ import annotations

from plane.streams.shared_memory_link import TensorLink
from protos.pipeline_pb2 import ArrayKind, LinkState
from services.tensors.payload_last import Message
from services.transport.links import LinkClosed
from worker.pipeline.link import Link
from worker.pipeline.messages import PassRefused, PieceReference, Received, describe_array
from worker.pipeline.shared_arrays import find_payload


class Connection:
    """One of the connections that a link has in its life, as the event loop sees it; those before it end.

    Args:
        link: the link.
        tensor_link: whether its ends share memory.

    Attributes:
        is_heard: whether the neighbour has sent something.
    """

    def __init__(self, link: Link, tensor_link: TensorLink) -> None:
        self.is_heard = False
        self._link = link
        self._signals = link.connect()
        self._tensor_link = tensor_link
        self._state = LinkState()  # the neighbour's newest
        self._started: set[ArrayKind] = set()

    async def next_message(self) -> tuple[Message, ...]:
        """Wait for the next message to send, and return its parts."""
        while True:
            self._signals.wake.clear()
            if self._signals.state_due:
                self._signals.state_due = False
                return (self._link.state_message(self._started),)
            if len(self._started) < len(self._state.lanes):  # it came before this end had lanes
                self._link.take_state(self._state, self._started)
            parts = self._link.next_piece(self._started, shares=self._tensor_link.shares)
            if parts is not None:
                return parts
            await self._signals.wake.wait()

    def take(self, message: Received | PieceReference) -> None:
        """Take a message.

        Raises:
            Refused: the message contradicts the link or what came before.
        """
        if self.is_over:
            return
        if isinstance(message, LinkState):
            self._link.take_state(message, self._started)
            self._state = message
            self._signals.wake.set()
        elif not self.is_heard:
            raise PassRefused(f"{describe_array(message.header)}: came before the state of {self._link}")
        elif isinstance(message, PieceReference):
            self._link.take_piece(find_payload(message, self._tensor_link))
        else:
            self._link.take_piece(message)
        self.is_heard = True

    @property
    def is_over(self) -> bool:
        """Whether another connection has replaced this one, or the link is closed."""
        return self._signals.over.is_set()

    async def wait_over(self) -> None:
        """Wait until another connection has replaced this one, or the link is closed.

        Raises:
            LinkClosed: always.
        """
        await self._signals.over.wait()
        raise LinkClosed(
            f"{self._link}: the stream is over, by silence, a message without end, a newer one, or its row's end"
        )
