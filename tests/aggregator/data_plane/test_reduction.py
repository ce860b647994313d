"""Tests of stored sums: payloads of any wire type are added in float32 and are not changed themselves."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from aggregator.core.events import (
    Assemble,
    Drop,
    DropAll,
    DropPieces,
    Forward,
    Keep,
    KeepPiece,
    Merge,
    SumEffect,
)
from aggregator.data_plane.reduction import NotStored, Reduction, StoredSums
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, GRADIENT, ChunkHeader, DType
from services.runtime.backlog import MAX_WAITING_CHUNKS
from services.tensors.chunk_messages import (
    TensorChunk,
    bytes_per_element,
    cut_piece,
    deserialize_chunk,
    pack_chunk,
    serialize_chunk,
)
from services.tensors.reduction_tree import Node
from services.tensors.shared_memory import MappedArray, SharedArray

ELEMENTS = 1000
LIMIT_SECONDS = 30
ROOT = Node(0, 4)
PAIRS = (Node(0, 2), Node(2, 2))
LEAVES = [Node(index, 1) for index in range(4)]
FORWARD = Forward(ChunkHeader(kind=GRADIENT, dtype=FLOAT32), ROOT)


class Sums:
    """Stored sums, and the finished sums they forwarded."""

    def __init__(self) -> None:
        self.values: list[NDArray[np.float32]] = []
        self._sums = StoredSums(lambda header, values: self.values.append(values))

    def give(self, *effects: SumEffect, chunk: TensorChunk | None = None) -> None:
        self._sums.carry_out(effects, chunk)


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
    arrived: set[Node] = set()
    for index in order:
        arrived.add(LEAVES[index])
        sums.give(Keep(0, LEAVES[index]), chunk=chunks[index])
        left, right = LEAVES[index - index % 2], LEAVES[index - index % 2 + 1]
        if {left, right} <= arrived:
            sums.give(Merge(0, left, right, PAIRS[index // 2]))
    sums.give(Merge(0, *PAIRS, ROOT), FORWARD)
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
    sums.give(Keep(0, ROOT), FORWARD, chunk=make(dtype, 0))
    (values,) = sums.values
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, received(dtype, 0).values())


def test_a_dropped_sum_is_forgotten() -> None:
    sums = Sums()
    sums.give(Keep(0, ROOT), Drop(0, ROOT), chunk=received(FLOAT32, 0))
    with pytest.raises(NotStored):
        sums.give(FORWARD)
    sums.give(Keep(0, ROOT), DropAll(), chunk=received(FLOAT32, 0))
    with pytest.raises(NotStored):
        sums.give(FORWARD)


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
        offset = piece.header.offset
        if offset in kept[lease]:
            continue  # the core drops it
        kept[lease].add(offset)
        left[lease] -= piece.header.elements
        effects: list[SumEffect] = [KeepPiece(lease, 0, offset)]
        if not left[lease]:
            effects += [Assemble(lease, 0), Keep(0, LEAVES[lease])]
            if not any(left):
                effects += [Merge(0, LEAVES[0], LEAVES[1], ROOT), FORWARD]
        sums.give(*effects, chunk=piece)
    (values,) = sums.values
    np.testing.assert_array_equal(values, chunks[0].values() + chunks[1].values())


def test_a_chunk_that_waited_is_kept_without_another_arrival() -> None:
    sums = Sums()
    for seed in range(2):  # of two chunks, after a report alone
        sums.give(KeepPiece(7, seed, 0), chunk=received(FLOAT32, seed))
    sums.give(Assemble(7, 0), Assemble(7, 1), Keep(0, ROOT), FORWARD)
    (values,) = sums.values
    np.testing.assert_array_equal(values, received(FLOAT32, 1).values())


def test_an_assembled_chunk_that_is_not_kept_is_not_kept_for_the_next_input() -> None:
    sums = Sums()
    sums.give(KeepPiece(7, 0, 0), Assemble(7, 0), chunk=received(FLOAT32, 0))
    sums.give(Keep(0, ROOT), FORWARD, chunk=received(FLOAT32, 1))
    (values,) = sums.values
    np.testing.assert_array_equal(values, received(FLOAT32, 1).values())


@pytest.mark.parametrize("effect", [DropPieces(7), DropAll()])
def test_dropped_pieces_are_forgotten_and_freed(effect: SumEffect) -> None:
    sums = Sums()
    piece = pieces_of(received(BFLOAT16, 0), [500])[0]
    freed = weakref.ref(piece)
    sums.give(KeepPiece(7, 0, 0), chunk=piece)
    del piece
    assert freed() is not None
    sums.give(DropPieces(8), effect)
    assert freed() is None
    with pytest.raises(NotStored):
        sums.give(Assemble(7, 0))


def test_assembled_pieces_are_freed() -> None:
    sums = Sums()
    pieces = pieces_of(received(BFLOAT16, 0), [500])
    freed = [weakref.ref(piece) for piece in pieces]
    sums.give(KeepPiece(7, 0, 0), chunk=pieces[0])
    sums.give(KeepPiece(7, 0, 500), Assemble(7, 0), Keep(0, ROOT), chunk=pieces[1])
    del pieces
    assert [each() for each in freed] == [None, None]


def test_effects_are_carried_out_in_order_on_a_thread_of_their_own() -> None:
    async def run() -> None:
        passed: list[tuple[float, int]] = []
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def forward(header: ChunkHeader, values: NDArray[np.float32]) -> None:
            passed.append((float(values[0]), threading.get_ident()))
            if len(passed) == 3:
                loop.call_soon_threadsafe(done.set)

        failures: list[Exception] = []
        reduction = Reduction(forward, failures.append)
        chunks = [received(FLOAT32, seed) for seed in range(3)]
        for chunk in chunks:
            reduction.submit([Keep(0, ROOT), FORWARD], chunk)
        await asyncio.wait_for(done.wait(), LIMIT_SECONDS)
        reduction.close()
        assert [value for value, _ in passed] == [float(chunk.values()[0]) for chunk in chunks]
        assert threading.get_ident() not in {thread for _, thread in passed}
        assert not failures

    asyncio.run(run())


def test_an_error_on_the_kernel_thread_is_reported() -> None:
    async def run() -> None:
        failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        reduction = Reduction(
            lambda header, values: None, lambda error: loop.call_soon_threadsafe(failed.set_result, error)
        )
        reduction.submit([FORWARD], None)
        assert isinstance(await asyncio.wait_for(failed, LIMIT_SECONDS), NotStored)
        reduction.close()

    asyncio.run(run())


def test_no_more_payloads_wait_for_the_thread_than_may() -> None:
    async def run() -> None:
        go = threading.Event()
        reduction = Reduction(lambda header, values: assert_soon(go), lambda error: None)
        for seed in range(MAX_WAITING_CHUNKS):
            await asyncio.wait_for(reduction.wait_for_room(), LIMIT_SECONDS)
            reduction.submit([Keep(0, ROOT), FORWARD], received(FLOAT32, seed))
        reduction.submit([Keep(0, ROOT), Drop(0, ROOT)], in_place(FLOAT32, 0))
        rooms = [asyncio.ensure_future(reduction.wait_for_room()) for _ in range(3)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert not any(room.done() for room in rooms), "the thread has come to none of them"
        go.set()
        await asyncio.wait_for(asyncio.gather(*rooms), LIMIT_SECONDS)
        reduction.close()

    asyncio.run(run())


def test_a_payload_goes_with_its_sum_though_others_came_in_the_same_turn() -> None:
    async def run() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        chunks: list[weakref.ref[TensorChunk]] = []
        alive: list[list[bool]] = []

        def forward(header: ChunkHeader, values: NDArray[np.float32]) -> None:
            alive.append([chunk() is not None for chunk in chunks])
            if len(alive) == 2:
                loop.call_soon_threadsafe(done.set)

        reduction = Reduction(forward, lambda error: None)
        for seed in range(2):
            chunk = received(BFLOAT16, seed)  # its values are not a view of its payload
            chunks.append(weakref.ref(chunk))
            reduction.submit([Keep(0, ROOT), FORWARD], chunk)
        del chunk
        await asyncio.wait_for(done.wait(), LIMIT_SECONDS)
        reduction.close()
        assert alive[1][0] is False

    asyncio.run(run())


def assert_soon(event: threading.Event) -> None:
    assert event.wait(LIMIT_SECONDS)
