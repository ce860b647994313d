"""Tests of stored sums: payloads of any wire type are added in float32 and are not changed themselves."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plane.errors import NotStored
from plane.sums import StoredSums, SumOrder
from protos.plane_pb2 import DropPieces, DropSum, DropSums, FinishSum, KeepSum, MergeSums, SumNode
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, GRADIENT, ChunkHeader, DType
from services.tensors.chunk_messages import (
    TensorChunk,
    bytes_per_element,
    cut_piece,
    deserialize_chunk,
    pack_chunk,
    serialize_chunk,
)
from services.tensors.shared_memory import MappedArray, SharedArray

ELEMENTS = 1000
ROOT = SumNode(first=0, count=4)
PAIRS = (SumNode(first=0, count=2), SumNode(first=2, count=2))
LEAVES = [SumNode(first=index, count=1) for index in range(4)]


class Sums:
    """Stored sums of a job, and the finished sums that they gave on."""

    def __init__(self) -> None:
        self.values: list[NDArray[np.float32]] = []
        self._sums = StoredSums()

    def give(self, *orders: SumOrder | FinishSum) -> None:
        for order in orders:
            order.job = "a"
            if isinstance(order, FinishSum):
                self.values += self._sums.finish(order)
            else:
                list(self._sums.carry_out(order))

    def keep(self, chunk: TensorChunk, lease: int, node: SumNode | None = None) -> None:
        """Keep a piece; with a node, keep its chunk as the sum of that."""
        chunk.header.job, chunk.header.lease = "a", lease
        self._sums.keep_piece(chunk)
        if node is not None:
            self.give(KeepSum(chunks=[0], lease=lease, node=node))


def merge(pair: int) -> MergeSums:
    """Return the order to add the leaves of a pair."""
    return MergeSums(chunks=[0], left=LEAVES[2 * pair], right=LEAVES[2 * pair + 1], parent=PAIRS[pair])


def received(dtype: DType, seed: int) -> TensorChunk:
    """Return a chunk that came in a message."""
    values = np.random.Generator(np.random.Philox(seed)).standard_normal(ELEMENTS, np.float32)
    return deserialize_chunk(serialize_chunk(pack_chunk(ChunkHeader(kind=GRADIENT, dtype=dtype), 0, values)))


def in_place(dtype: DType, seed: int) -> TensorChunk:
    """Return the same chunk in memory that its worker shares."""
    chunk = received(dtype, seed)
    size_bytes = ELEMENTS * bytes_per_element(dtype)
    array = SharedArray(size_bytes, size_bytes)
    array.payload[:] = np.frombuffer(chunk.payload, np.uint8)
    seen = MappedArray(os.getpid(), array.descriptor, array.identity)
    return TensorChunk(chunk.header, seen.place(0).data, seen)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
@pytest.mark.parametrize("here", [(), (0, 1, 2, 3), (0,), (1, 2, 3), (2, 3)])
def test_every_addition_is_float32_whatever_arrives_when_and_how(
    dtype: DType, order: Sequence[int], here: Sequence[int]
) -> None:
    sums = Sums()
    chunks = [(in_place if index in here else received)(dtype, index) for index in range(4)]
    payloads = [bytes(chunk.payload) for chunk in chunks]
    arrived: set[int] = set()
    for index in order:
        arrived.add(index)
        sums.keep(chunks[index], index, LEAVES[index])
        if {index, index ^ 1} <= arrived:
            sums.give(merge(index // 2))
    sums.give(
        MergeSums(chunks=[0], left=PAIRS[0], right=PAIRS[1], parent=ROOT), FinishSum(chunks=[0], node=ROOT)
    )
    (values,) = sums.values
    a, b, c, d = (received(dtype, seed).values() for seed in range(4))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, (a + b) + (c + d))
    assert [bytes(chunk.payload) for chunk in chunks] == payloads


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize("make", [received, in_place])
def test_a_root_that_one_worker_computed_is_passed_on_widened(
    dtype: DType, make: Callable[[DType, int], TensorChunk]
) -> None:
    sums = Sums()
    sums.keep(make(dtype, 0), 1, ROOT)
    sums.give(FinishSum(chunks=[0], node=ROOT))
    (values,) = sums.values
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, received(dtype, 0).values())


@pytest.mark.parametrize("drop", [DropSum(chunks=[0], node=ROOT), DropSums()])
def test_a_dropped_sum_is_forgotten(drop: SumOrder) -> None:
    sums = Sums()
    sums.keep(received(FLOAT32, 0), 1, ROOT)
    sums.give(drop)
    with pytest.raises(NotStored, match="no sum of 4 micro-batches from 0 of chunk 0"):
        sums.give(FinishSum(chunks=[0], node=ROOT))


def test_jobs_do_not_see_each_others_sums() -> None:
    sums = StoredSums()
    for job in ("a", "b"):
        chunk = received(FLOAT32, 0)
        chunk.header.job = job
        sums.keep_piece(chunk)
        list(sums.carry_out(KeepSum(chunks=[0], job=job, node=ROOT)))
    list(sums.carry_out(DropSums(job="a")))
    (finished,) = sums.finish(FinishSum(chunks=[0], job="b", node=ROOT))
    assert finished.size == ELEMENTS
    with pytest.raises(NotStored):
        list(sums.finish(FinishSum(chunks=[0], job="a", node=ROOT)))


def pieces_of(chunk: TensorChunk, cuts: Sequence[int]) -> list[TensorChunk]:
    """Return the pieces of a chunk between cuts, as they come in messages."""
    bounds = [0, *sorted(cuts), ELEMENTS]
    return [
        deserialize_chunk(serialize_chunk(cut_piece(chunk, start, stop - start)))
        for start, stop in itertools.pairwise(bounds)
    ]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_chunks_in_any_pieces_and_order_give_the_bits_of_whole_ones(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([FLOAT32, BFLOAT16, FLOAT16]))
    chunks = [received(dtype, seed) for seed in range(2)]
    arrivals = []  # lease and piece; some pieces come twice
    for lease, chunk in enumerate(chunks):
        pieces = pieces_of(chunk, data.draw(st.lists(st.integers(1, ELEMENTS - 1), max_size=5, unique=True)))
        again = data.draw(st.lists(st.sampled_from(pieces), max_size=2))
        arrivals += [(lease, piece) for piece in [*pieces, *again]]
    sums = Sums()
    kept: list[set[int]] = [set(), set()]
    left = [ELEMENTS, ELEMENTS]
    for lease, piece in data.draw(st.permutations(arrivals)):
        if piece.header.offset in kept[lease]:
            continue  # the core discards it
        kept[lease].add(piece.header.offset)
        left[lease] -= piece.header.elements
        sums.keep(piece, lease, None if left[lease] else LEAVES[lease])
    sums.give(merge(0), FinishSum(chunks=[0], node=PAIRS[0]))
    (values,) = sums.values
    np.testing.assert_array_equal(values, chunks[0].values() + chunks[1].values())


def test_a_repeated_chunk_is_discarded_once_it_is_whole() -> None:
    sums = Sums()
    sums.keep(received(FLOAT32, 0), 7)
    sums.give(KeepSum(chunks=[0], lease=7))
    with pytest.raises(NotStored, match="no piece of chunk 0 of lease 7"):
        sums.give(KeepSum(chunks=[0], lease=7, node=ROOT))


@pytest.mark.parametrize("drop", [DropPieces(lease=7), DropSums()])
def test_dropped_pieces_are_forgotten_and_freed(drop: SumOrder) -> None:
    sums = Sums()
    piece = pieces_of(received(BFLOAT16, 0), [500])[0]
    freed = weakref.ref(piece)
    sums.keep(piece, 7)
    del piece
    assert freed() is not None
    sums.give(DropPieces(lease=8), drop)
    assert freed() is None
    with pytest.raises(NotStored):
        sums.give(KeepSum(chunks=[0], lease=7, node=ROOT))


def test_pieces_are_freed_once_their_chunk_is_put_together() -> None:
    sums = Sums()
    pieces = pieces_of(received(BFLOAT16, 0), [500])
    freed = [weakref.ref(piece) for piece in pieces]
    sums.keep(pieces[0], 7)
    sums.keep(pieces[1], 7, ROOT)
    del pieces
    assert [each() for each in freed] == [None, None]
