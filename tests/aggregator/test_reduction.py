"""Kept sums: payloads of any wire type are added in float32, up the tree, and stay as they came."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from aggregator.events import Drop, DropAll, Forward, Keep, Merge
from aggregator.reduction import Reduction
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, GRADIENT, ChunkHeader, DType
from services.tensors.tree import Node
from services.tensors.wire import TensorChunk, deserialize, pack, serialize

ELEMENTS = 1000
LIMIT_SECONDS = 30
ROOT = Node(0, 4)
PAIRS = (Node(0, 2), Node(2, 2))
LEAVES = [Node(index, 1) for index in range(4)]


class Forwarded:
    """A reduction, and what it passed on."""

    def __init__(self) -> None:
        self.values: list[NDArray[np.float32]] = []
        self.failures: list[Exception] = []
        self._done = threading.Event()
        self.reduction = Reduction(self._forward, self._failed)

    def _forward(self, header: ChunkHeader, values: NDArray[np.float32]) -> None:
        self.values.append(values)
        self._done.set()

    def _failed(self, error: Exception) -> None:
        self.failures.append(error)
        self._done.set()

    def arrive(self, chunk: TensorChunk, node: Node, *merges: tuple[Node, Node, Node], done: bool) -> None:
        """A chunk comes in, and is merged."""
        effects: list[Keep | Drop | DropAll | Merge | Forward] = [Keep(0, node)]
        effects += [Merge(0, *merge) for merge in merges]
        if done:
            effects.append(Forward(ChunkHeader(kind=GRADIENT, dtype=FLOAT32), ROOT))
        self.reduction.submit(effects, chunk)

    def wait(self) -> NDArray[np.float32]:
        """What was passed on."""
        assert self._done.wait(LIMIT_SECONDS)
        self.reduction.close()
        assert not self.failures
        (values,) = self.values
        return values


def received(dtype: DType, seed: int) -> TensorChunk:
    values = np.random.Generator(np.random.Philox(seed)).standard_normal(ELEMENTS, np.float32)
    return deserialize(serialize(pack(ChunkHeader(kind=GRADIENT, dtype=dtype), 0, values)))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
def test_every_addition_is_float32_whatever_arrives_when(dtype: DType, order: Sequence[int]) -> None:
    forwarded = Forwarded()
    chunks = [received(dtype, seed) for seed in range(4)]
    payloads = [bytes(chunk.payload) for chunk in chunks]
    arrived: set[Node] = set()
    for position, index in enumerate(order):
        arrived.add(LEAVES[index])
        left, right = LEAVES[index - index % 2], LEAVES[index - index % 2 + 1]
        merges = [(left, right, PAIRS[index // 2])] if {left, right} <= arrived else []
        last = position == 3
        forwarded.arrive(
            chunks[index], LEAVES[index], *merges, *([(*PAIRS, ROOT)] if last else []), done=last
        )
    values = forwarded.wait()
    a, b, c, d = (chunk.values() for chunk in chunks)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, (a + b) + (c + d))
    assert [bytes(chunk.payload) for chunk in chunks] == payloads


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16, FLOAT16])
def test_a_root_that_one_worker_computed_is_passed_on_widened(dtype: DType) -> None:
    forwarded = Forwarded()
    chunk = received(dtype, 0)
    forwarded.arrive(chunk, ROOT, done=True)
    values = forwarded.wait()
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, chunk.values())
