"""Budget of the frames with little content that a peer may send. Time and payload refill it.

Every frame costs a few microseconds of Python, however small it is. Without a limit a peer could keep a core busy at
little cost: by PING, SETTINGS, WINDOW_UPDATE, PRIORITY, empty DATA, or streams that it resets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.transport.http2.frames import ErrorCode, FrameType, ProtocolError

_BYTES_OF_A_FRAME = 1024
"""Payload, in either direction, that pays for one frame."""
_BYTES_OF_A_COST = 256
_HEADERS_COST = 10
"""Cost of a HEADERS frame, because a header block takes as long to decode as so many small frames to read."""


@dataclass(frozen=True)
class FrameAllowance:
    """Frames without payload that a peer may send.

    Attributes:
        at_once: largest number at once.
        per_second: number a second.
    """

    at_once: float
    per_second: float


UNKNOWN_PEER = FrameAllowance(at_once=100, per_second=10)
"""Allowance of a client before its call is accepted."""
KNOWN_PEER = FrameAllowance(at_once=4000, per_second=4000)
"""Allowance of a server, and of a client whose call was accepted. 4,000 frames take about 2 % of a core."""


class FrameBudget:
    """Budget of one peer.

    Args:
        allowance: what the peer may send.
        clock: monotonic time in seconds.
    """

    def __init__(self, allowance: FrameAllowance, clock: Callable[[], float]) -> None:
        self._allowance = allowance
        self._clock = clock
        self._left = allowance.at_once
        self._updated_seconds = clock()

    def enlarge(self, allowance: FrameAllowance) -> None:
        """Give the peer this allowance from now on."""
        self._allowance = allowance
        self._left = allowance.at_once

    def earn(self, payload_bytes: int) -> None:
        """Refill the budget by payload that was sent or received."""
        self._left = min(self._left + payload_bytes / _BYTES_OF_A_FRAME, self._allowance.at_once)

    def spend(self, kind: int, length: int) -> None:
        """Charge the peer for a frame.

        Args:
            kind: type of the frame.
            length: length of its payload in bytes.

        Raises:
            ProtocolError: the peer has spent its budget.
        """
        if kind == FrameType.DATA:
            self.earn(length)
            cost = 1.0
        else:
            cost = (_HEADERS_COST if kind == FrameType.HEADERS else 1) + length // _BYTES_OF_A_COST
        self.spend_cost(cost)

    def spend_cost(self, cost: float) -> None:
        """Charge the peer for as much work as `cost` small frames are.

        Raises:
            ProtocolError: the peer has spent its budget.
        """
        self._left -= cost
        if self._left < 0:
            now = self._clock()
            refill = (now - self._updated_seconds) * self._allowance.per_second
            self._updated_seconds = now
            self._left = min(self._left + refill, self._allowance.at_once)
            if self._left < 0:
                raise ProtocolError(
                    f"more than {self._allowance.per_second:g} frames a second without payload",
                    ErrorCode.ENHANCE_YOUR_CALM,
                )

    def spend_dropped(self, length: int) -> None:
        """Charge the peer for payload that is dropped.

        Raises:
            ProtocolError: the peer has spent its budget.
        """
        self.spend_cost(length / _BYTES_OF_A_COST)
