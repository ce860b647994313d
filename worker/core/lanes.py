"""One direction of a link between stages for one kind of array: what may be sent, and what has arrived.

A lane delivers the arrays of a row's leases once and in order, over connections that may break. The sender keeps each
array until the receiver has taken it, and sends it again where a connection broke before it had arrived. Credits bound
what both ends keep. Neither end knows what an array is.

The arrays of a lane are numbered from 1 when they are first sent, whatever their leases, so that none can be missing
unnoticed. Leases follow each other in the order of their ids.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from services.errors import Refused

Array = TypeVar("Array")


class LaneRefused(Refused):
    """A message that contradicts those before it. The text names its place in the lane."""


class Overtaken(Exception):
    """The sender has gone on to a later lease, so nothing more will come of this one."""


class Position(NamedTuple):
    """What a receiver has, for the sender's next connection.

    Attributes:
        arrived: number of the last array that it has whole.
        taken: number of the last array that was taken or dropped.
        lease: lease of the array after `arrived`, if a part of it is there.
        filled_bytes: size of that part, from the array's start.
    """

    arrived: int
    taken: int
    lease: int = 0
    filled_bytes: int = 0


class Progress(NamedTuple):
    """What a sender has sent, by which a receiver notices that something was lost.

    Attributes:
        sent: number of the last array that was sent whole.
        lease: lease of the array after `sent`, if a part of it was sent.
        sent_bytes: size of that part.
    """

    sent: int
    lease: int = 0
    sent_bytes: int = 0


class Piece(NamedTuple, Generic[Array]):
    """Part of an array that is to be sent.

    Attributes:
        number: number of the array in the lane.
        array: the array.
        start: index of the part's first byte.
        stop: index after its last byte.
    """

    number: int
    array: Array
    start: int
    stop: int


@dataclass
class _Kept(Generic[Array]):
    """An array that was not taken yet.

    Attributes:
        lease: id of its lease.
        array: the array; None once its lease was dropped.
        size_bytes: its size.
        number: its number; 0 until it is sent.
        sent_bytes: how much of it was sent.
    """

    lease: int
    array: Array | None
    size_bytes: int
    number: int = 0
    sent_bytes: int = 0

    @property
    def is_sent(self) -> bool:
        return self.sent_bytes == self.size_bytes


class SendingLane(Generic[Array]):
    """The sender's end of a lane.

    Args:
        credits: largest number of arrays that wait to be sent, or were sent and that the receiver has not taken.
        piece_bytes: largest size of a piece.
    """

    def __init__(self, credits: int, piece_bytes: int) -> None:
        self._credits = credits
        self._piece_bytes = piece_bytes
        self._kept: deque[_Kept[Array]] = deque()
        self._last_number = 0

    @property
    def has_room(self) -> bool:
        """Whether another array may be put."""
        return len(self._kept) < self._credits

    @property
    def kept(self) -> int:
        """Number of arrays that this end keeps in memory."""
        return sum(each.array is not None for each in self._kept)

    @property
    def progress(self) -> Progress:
        """What was sent."""
        last = next((each for each in reversed(self._kept) if each.number), None)
        if last is None or last.is_sent:
            return Progress(self._last_number)
        return Progress(last.number - 1, last.lease, last.sent_bytes)

    def put(self, lease: int, array: Array, size_bytes: int) -> None:
        """Append an array. There must be room.

        Args:
            lease: id of its lease, at least that of the array before.
            array: the array, which must not change until it was taken.
            size_bytes: its size, at least 1.
        """
        assert self.has_room and size_bytes > 0 and not (self._kept and lease < self._kept[-1].lease)
        self._kept.append(_Kept(lease, array, size_bytes))

    def next_piece(self) -> Piece[Array] | None:
        """Return the next piece, which then counts as sent; None if there is none."""
        for each in self._kept:
            if each.array is None or each.is_sent:
                continue
            if not each.sent_bytes:
                self._last_number += 1
                each.number = self._last_number
            start = each.sent_bytes
            each.sent_bytes = min(start + self._piece_bytes, each.size_bytes)
            return Piece(each.number, each.array, start, each.sent_bytes)
        return None

    def note_taken(self, taken: int) -> None:
        """Release the arrays up to this number, which the receiver has taken or does not want.

        Raises:
            LaneRefused: no such array was sent.
        """
        if taken > self._last_number:
            raise LaneRefused(f"array {taken} is said to be taken, expected at most {self._last_number}")
        while self._kept and 0 < self._kept[0].number <= taken:
            self._kept.popleft()

    def reconnect(self, position: Position) -> None:
        """Prepare for a new connection: what has not arrived is sent again.

        Args:
            position: what the receiver has.

        Raises:
            LaneRefused: no such arrays were sent.
        """
        arrived, taken, lease, filled_bytes = position
        if not taken <= arrived <= self._last_number:
            raise LaneRefused(
                f"array {taken} is said to be taken and {arrived} to be there, expected at most {self._last_number}"
            )
        self.note_taken(taken)
        self._last_number = arrived
        for each in self._kept:
            if each.number == arrived + 1 and each.array is not None and each.lease == lease and filled_bytes:
                each.sent_bytes = min(each.sent_bytes, filled_bytes)
                self._last_number = each.number
            elif each.number > arrived:
                each.number = each.sent_bytes = 0
        self._release_unsent()

    def drop(self, lease: int) -> None:
        """Release the arrays of a lease.

        Those that were sent go on using credits until the receiver has dropped them too. Arrays of earlier leases are
        still delivered: their passes are over here, but perhaps not at the receiver.
        """
        for each in self._kept:
            if each.lease == lease:
                each.array = None
                if each.number and not each.is_sent:  # the next array takes its number and its place
                    self._last_number -= 1
                    each.number = each.sent_bytes = 0
        self._release_unsent()

    def _release_unsent(self) -> None:
        self._kept = deque(each for each in self._kept if each.array is not None or each.number)


@dataclass
class _Arriving(Generic[Array]):
    """An array that has arrived in part; `array` is None if its lease was dropped."""

    lease: int
    array: Array | None
    size_bytes: int
    filled_bytes: int = 0


class ReceivingLane(Generic[Array]):
    """The receiver's end of a lane.

    Args:
        credits: largest number of arrays that have arrived, whole or in part, and were not taken.
        limit_bytes: largest size of an array.

    Attributes:
        taken: number of the last array that was taken or dropped.
    """

    def __init__(self, credits: int, limit_bytes: int) -> None:
        self.taken = 0
        self._arrived = 0  # number of the last array that is whole
        self._credits = credits
        self._limit_bytes = limit_bytes
        self._waiting: deque[tuple[int, Array]] = deque()  # with their leases
        self._arriving: _Arriving[Array] | None = None
        self._dropped = -1  # last lease that was dropped

    @property
    def kept(self) -> int:
        """Number of arrays in memory, whole or in part."""
        arriving = self._arriving
        return len(self._waiting) + (arriving is not None and arriving.array is not None)

    @property
    def position(self) -> Position:
        """What has arrived."""
        if self._arriving is None:
            return Position(self._arrived, self.taken)
        return Position(self._arrived, self.taken, self._arriving.lease, self._arriving.filled_bytes)

    def check(self, progress: Progress) -> None:
        """Check that what was sent before a message has come.

        Raises:
            LaneRefused: a part was lost.
        """
        arriving = self._arriving
        filled_bytes = (
            arriving.filled_bytes if arriving is not None and arriving.lease == progress.lease else 0
        )
        if (self._arrived, filled_bytes) < (progress.sent, progress.sent_bytes):
            raise LaneRefused(
                f"array {progress.sent} and {progress.sent_bytes} bytes of the next were sent, but only array "
                f"{self._arrived} and {filled_bytes} bytes have come; some were lost"
            )

    def accept(
        self, lease: int, number: int, size_bytes: int, start: int, stop: int, make: Callable[[], Array]
    ) -> Array | None:
        """Return the array that a piece belongs to. The caller copies the piece before it takes an array.

        Args:
            lease: id of the array's lease.
            number: number of the array.
            size_bytes: size of the array.
            start: index of the piece's first byte.
            stop: index after its last byte.
            make: makes the array. It is called with an array's first piece.

        Returns:
            The array; None if the piece was here before, or is of a lease that was dropped.

        Raises:
            LaneRefused: the piece is none that may come now.
        """
        if number <= self._arrived:
            return None
        place = f"array {number} of lease {lease}"
        if number > self._arrived + 1:
            raise LaneRefused(f"{place}: expected a part of array {self._arrived + 1}; one was lost")
        arriving = self._arriving
        if arriving is None or (lease > arriving.lease and not start):
            arriving = self._begin(place, lease, size_bytes, make)
        if lease < arriving.lease or (lease == arriving.lease and stop <= arriving.filled_bytes):
            return None
        if (lease, size_bytes) != (arriving.lease, arriving.size_bytes):
            raise LaneRefused(
                f"{place}: {size_bytes} bytes, expected {arriving.size_bytes} of {arriving.lease}"
            )
        if start != arriving.filled_bytes or not start < stop <= size_bytes:
            expected = f"expected {arriving.filled_bytes} and more to at most {size_bytes}"
            raise LaneRefused(f"{place}: bytes {start} to {stop}, {expected}; some were lost")
        arriving.filled_bytes = stop
        if stop == size_bytes:
            self._finish(number, arriving)
        return arriving.array

    def _begin(self, place: str, lease: int, size_bytes: int, make: Callable[[], Array]) -> _Arriving[Array]:
        if len(self._waiting) >= self._credits:
            raise LaneRefused(f"{place}: expected at most {self._credits} arrays before they are taken")
        if self._waiting and lease < self._waiting[-1][0]:
            raise LaneRefused(f"{place}: expected none after one of lease {self._waiting[-1][0]}")
        if not 0 < size_bytes <= self._limit_bytes:
            raise LaneRefused(f"{place}: {size_bytes} bytes, expected 1 to {self._limit_bytes} in this job")
        self._arriving = _Arriving(lease, make() if lease > self._dropped else None, size_bytes)
        return self._arriving

    def _finish(self, number: int, arriving: _Arriving[Array]) -> None:
        self._arrived, self._arriving = number, None
        if arriving.array is None:
            self.taken = number  # all before it were dropped too, since leases come in order
        else:
            self._waiting.append((arriving.lease, arriving.array))

    def take(self, lease: int) -> Array | None:
        """Return the next array of a lease; None if it has not arrived. Those of earlier leases were dropped.

        Raises:
            Overtaken: the next array is of a later lease.
        """
        if self._waiting and self._waiting[0][0] == lease:
            self.taken += 1
            return self._waiting.popleft()[1]
        if self._waiting or (self._arriving is not None and self._arriving.lease > lease):
            raise Overtaken
        return None

    def drop(self, lease: int) -> None:
        """Drop the arrays of a lease and of those before it, those that will still come too."""
        self._dropped = max(self._dropped, lease)
        while self._waiting and self._waiting[0][0] <= lease:
            self._waiting.popleft()
            self.taken += 1
        if self._arriving is not None and self._arriving.lease <= lease:
            self._arriving.array = None
