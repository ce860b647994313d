"""Every array of a lane arrives once, whole and in order, over links that lose, repeat, swap and cut."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.core.lanes import LaneRefused, Overtaken, Piece, Position, ReceivingLane, SendingLane

LEASE = 1 << 32
LIMIT_BYTES = 40


class Item(NamedTuple):
    lease: int
    content: bytes


class Sent(NamedTuple):
    """A piece on the simulated link."""

    lease: int
    number: int
    content: bytes
    start: int
    size_bytes: int


class Link:
    """Both ends of a lane with a connection between them, whose faults are drawn from `random`.

    Args:
        random: choices.
        credits: credits of the lane.
        piece_bytes: largest piece.
        faults: whether messages are lost, repeated and swapped, besides connections that break.
    """

    def __init__(self, random: Random, credits: int, piece_bytes: int, *, faults: bool) -> None:
        self.sender = SendingLane[Item](credits, piece_bytes)
        self.receiver = ReceivingLane[bytearray](credits, LIMIT_BYTES)
        self._random = random
        self._faults = faults
        self._credits = credits
        self._pieces: deque[Sent] = deque()
        self._takes: deque[int] = deque()
        self._acknowledged = 0

    def step(self) -> None:
        """Let one thing happen on the link."""
        match self._random.choice("ssssddddaattb" if self._faults else "ssddaatt"):
            case "s":
                if (piece := self.sender.next_piece()) is not None:
                    self._pieces.append(sent(piece))
            case "d" if self._pieces:
                self._deliver(self._pieces.popleft())
            case "a" if self.receiver.taken != self._acknowledged:
                self._acknowledged = self.receiver.taken
                self._takes.append(self._acknowledged)
            case "t" if self._takes:
                self.sender.note_taken(self._takes.popleft())
            case "b":
                self.reconnect()
        assert self.sender.kept <= self._credits and self.receiver.kept <= self._credits

    def _deliver(self, one: Sent) -> None:
        fault = self._random.random() if self._faults else 1.0
        if fault < 0.05:
            return  # lost
        if fault < 0.1:
            self._pieces.appendleft(one)  # repeated
        elif fault < 0.15 and self._pieces:
            self._pieces.append(one)  # late
            return
        try:
            array = self.receiver.accept(
                one.lease,
                one.number,
                one.size_bytes,
                one.start,
                one.start + len(one.content),
                lambda: bytearray(one.size_bytes),
            )
        except LaneRefused:
            assert self._faults, "a link without faults is refused nothing"
            self.reconnect()
            return
        if array is not None:
            array[one.start : one.start + len(one.content)] = one.content

    def reconnect(self) -> None:
        """Lose what is on its way, and go on with another connection."""
        self._pieces.clear()
        self._takes.clear()
        self._acknowledged = self.receiver.taken
        self.sender.reconnect(self.receiver.position)


def sent(piece: Piece[Item]) -> Sent:
    lease, content = piece.array
    return Sent(lease, piece.number, content[piece.start : piece.stop], piece.start, len(content))


@given(
    st.integers(),
    st.integers(1, 3),
    st.integers(1, 16),
    st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=1, max_size=LIMIT_BYTES)), max_size=12),
    st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_every_array_arrives_once_whole_and_in_order(
    seed: int, credits: int, piece_bytes: int, arrays: list[tuple[int, bytes]], faults: bool
) -> None:
    random = Random(seed)
    arrays.sort(key=lambda each: each[0])  # by lease
    link = Link(random, credits, piece_bytes, faults=faults)
    to_put, to_take, turns = deque(arrays), deque(arrays), 0
    while to_take:
        turns += 1
        assert turns < 40_000, "the lane stands still"
        if to_put and link.sender.has_room and random.random() < 0.3:
            lease, array = to_put.popleft()
            link.sender.put(LEASE + lease, Item(LEASE + lease, array), len(array))
        if random.random() < 0.3:
            lease, expected = to_take[0]
            found = link.receiver.take(LEASE + lease)
            if found is not None:
                assert found == expected
                to_take.popleft()
        link.step()
        if turns % 200 == 199:
            link.reconnect()  # a lost message is noticed with the connection
    assert link.receiver.kept == 0


@given(st.integers(), st.integers(1, 3), st.integers(1, 16), st.booleans())
@settings(max_examples=200, deadline=None)
def test_leases_that_are_dropped_at_any_moment_do_not_hold_up_the_next(
    seed: int, credits: int, piece_bytes: int, faults: bool
) -> None:
    random = Random(seed)
    link = Link(random, credits, piece_bytes, faults=faults)
    for lease in range(LEASE, LEASE + 6):
        last = lease == LEASE + 5
        count, put = random.randrange(1, 6), 0
        expected = [bytes([lease % 256, number] * (1 + number)) for number in range(count)]
        dropped_at = None if last else random.randrange(60)
        taken: list[bytes] = []
        link.receiver.drop(lease - 1)  # as a receiver that begins a lease does
        for turn in range(20_000):
            if len(taken) == count or turn == dropped_at:
                break
            if put < count and link.sender.has_room:
                link.sender.put(lease, Item(lease, expected[put]), len(expected[put]))
                put += 1
            found = link.receiver.take(lease)
            if found is not None:
                taken.append(bytes(found))
            link.step()
            if turn % 200 == 199:
                link.reconnect()
        assert taken == expected[: len(taken)]
        assert len(taken) == count or not last
        link.sender.drop(lease)
        assert link.sender.kept == 0


def test_a_receiver_that_waits_for_a_lease_learns_that_the_sender_has_given_it_up() -> None:
    receiver = ReceivingLane[bytearray](2, LIMIT_BYTES)
    assert receiver.take(LEASE) is None
    receiver.accept(LEASE + 1, 1, 2, 0, 2, lambda: bytearray(2))
    with pytest.raises(Overtaken):
        receiver.take(LEASE)
    assert receiver.take(LEASE + 1) == bytearray(2)


def test_what_comes_of_a_dropped_lease_is_stale_and_uses_no_memory() -> None:
    receiver = ReceivingLane[bytearray](1, LIMIT_BYTES)
    receiver.drop(LEASE)
    for number in (1, 2):
        assert receiver.accept(LEASE, number, 2, 0, 2, lambda: pytest.fail("it was made")) is None
        assert (*receiver.position[:2], receiver.kept) == (number, number, 0)
    assert receiver.accept(LEASE + 1, 3, 2, 0, 2, lambda: bytearray(2)) is not None


@pytest.mark.parametrize(
    ("lease", "number", "size_bytes", "start", "stop", "match"),
    [
        (LEASE, 2, 9, 4, 8, "9 bytes, expected 8"),
        (LEASE, 2, 8, 5, 8, "bytes 5 to 8, expected 4"),
        (LEASE, 2, 8, 4, 9, "bytes 4 to 9"),
        (LEASE, 3, 8, 0, 8, "expected a part of array 2; one was lost"),
        (LEASE + 1, 2, 8, 1, 8, "8 bytes, expected 8 of"),
        (LEASE + 1, 2, LIMIT_BYTES + 1, 0, 8, "41 bytes, expected 1 to 40"),
        (LEASE + 1, 2, 0, 0, 0, "0 bytes, expected 1 to 40"),
    ],
)
def test_contradictions_are_refused_with_their_place(
    lease: int, number: int, size_bytes: int, start: int, stop: int, match: str
) -> None:
    receiver = ReceivingLane[bytearray](2, LIMIT_BYTES)
    receiver.accept(LEASE, 1, 4, 0, 4, lambda: bytearray(4))
    receiver.accept(LEASE, 2, 8, 0, 4, lambda: bytearray(8))
    with pytest.raises(LaneRefused, match=f"array {number} of lease {lease}: .*{match}"):
        receiver.accept(lease, number, size_bytes, start, stop, lambda: bytearray(size_bytes))


@given(st.integers(), st.integers(1, 16))
@settings(max_examples=100, deadline=None)
def test_a_lost_piece_is_noticed_by_the_sender_s_progress_and_nothing_else_is(
    seed: int, piece_bytes: int
) -> None:
    random = Random(seed)
    sender, receiver = SendingLane[Item](4, piece_bytes), ReceivingLane[bytearray](4, LIMIT_BYTES)
    lease, lost = LEASE, False
    for _ in range(40):
        if sender.has_room and random.random() < 0.5:
            content = bytes(random.randrange(1, LIMIT_BYTES))
            sender.put(lease, Item(lease, content), len(content))
        if random.random() < 0.1:
            sender.drop(lease)
            receiver.drop(lease)
            lease += 1
        if (piece := sender.next_piece()) is not None:
            lost = random.random() < 0.05
            if not lost:
                one = sent(piece)
                stop = one.start + len(one.content)
                receiver.accept(one.lease, one.number, one.size_bytes, one.start, stop, lambda: bytearray(99))
        if lost:
            if sender.progress != (0, 0, 0) and piece is not None:
                with pytest.raises(LaneRefused, match="some were lost"):
                    receiver.check(sender.progress)
            return
        receiver.check(sender.progress)
        if receiver.take(lease) is not None:
            sender.note_taken(receiver.taken)


def test_an_array_goes_on_where_its_connection_broke() -> None:
    sender = SendingLane[bytes](2, 4)
    sender.put(LEASE, b"12345678", 8)
    assert sender.next_piece() == (1, b"12345678", 0, 4)
    assert sender.next_piece() == (1, b"12345678", 4, 8)
    sender.reconnect(Position(0, 0, LEASE, 4))
    assert sender.next_piece() == (1, b"12345678", 4, 8)
    assert sender.next_piece() is None


def test_another_array_does_not_go_on_where_a_dropped_one_broke() -> None:
    sender = SendingLane[bytes](2, 4)
    sender.put(LEASE, b"12345678", 8)
    sender.next_piece()
    sender.drop(LEASE)
    sender.put(LEASE + 1, b"abcdefgh", 8)
    sender.next_piece()
    sender.reconnect(Position(0, 0, LEASE, 4))
    assert sender.next_piece() == (1, b"abcdefgh", 0, 4)


def test_a_dropped_lease_leaves_the_arrays_of_a_computed_one() -> None:
    sender = SendingLane[bytes](3, 8)
    for lease in (LEASE, LEASE + 1):
        sender.put(lease, b"1234", 4)
    sender.drop(LEASE + 1)
    assert sender.next_piece() == (1, b"1234", 0, 4)
    assert (sender.next_piece(), sender.kept) == (None, 1)


def test_an_earlier_lease_does_not_come_after_a_later_one() -> None:
    receiver = ReceivingLane[bytearray](2, LIMIT_BYTES)
    receiver.accept(LEASE + 1, 1, 4, 0, 4, lambda: bytearray(4))
    with pytest.raises(LaneRefused, match="expected none after one of lease"):
        receiver.accept(LEASE, 2, 4, 0, 4, lambda: bytearray(4))


def test_a_sender_that_ignores_its_credits_is_refused() -> None:
    receiver = ReceivingLane[bytearray](2, LIMIT_BYTES)
    for number in (1, 2):
        receiver.accept(LEASE, number, 4, 0, 4, lambda: bytearray(4))
    with pytest.raises(LaneRefused, match="at most 2 arrays before they are taken"):
        receiver.accept(LEASE, 3, 4, 0, 4, lambda: bytearray(4))


@pytest.mark.parametrize(("arrived", "taken"), [(1, 2), (2, 1), (2, 2)])
def test_a_receiver_that_claims_what_was_not_sent_is_refused(arrived: int, taken: int) -> None:
    sender = SendingLane[bytes](2, 8)
    sender.put(LEASE, b"1234", 4)
    assert sender.next_piece() == (1, b"1234", 0, 4)
    with pytest.raises(LaneRefused, match="expected at most 1"):
        sender.reconnect(Position(arrived, taken))
    with pytest.raises(LaneRefused, match=r"array 2 .* expected at most 1"):
        sender.note_taken(2)
