"""Golden bits of the arithmetic that code fingerprints name by a number: `ARITHMETIC` of `compute/code_fingerprint.py`.

Each number has the SHA-256 of what its arithmetic computes from fixed inputs, by each clone of the kernels.
Hashes of a number never change: workers of two versions with one number take part in one job.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple
from typing import Any
from unittest import mock

import numpy as np
import pytest

from compute.code_fingerprint import ARITHMETIC
from native.library import C, find_kernels
from optimizer.schedules import gradient_norm
from services.pipeline.exchange import FinishedPass
from services.tensors.kernels import arithmetic
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.kernels.wire_types import WireDType
from services.tensors.layout import CHUNK_ELEMENTS, Layout, chunk_range
from services.tensors.reduction_tree import Node, children, path_to
from tests.support.block_sums import norm_squared_blocks
from worker.node_sum import NodeSum

GOLDEN: dict[int, dict[str, str]] = {
    1: {
        "add_sums": "0a69df43724f562e48b5e684ec1166262c7f02c52b422c1c6732e4aaf303bc0a",
        "add_norms": "a737136722fa3993a7f21f7163127023e4e30262d4f33e38c3ce13f5696307ee",
        "add_wire_types": "f02fbbf9ac4f7079b5319e02219abb50554a569d838c1f2f01c9cf41b712a565",
        "add_tree": "ce99e50853f3fac5f897daade80ab518164fbef7c6ee2a432b1264564dd06ea5",
        "add_layout": "6c0b7590d6e8f5e1ff11ffe622019d0a3fea096e7a399fb805ea4cc2b46a44f3",
        "add_node_sums": "02aa144b8469ced3659fc3dc0dbb6477e05a6b8849cef528157f27b366e75c1d",
        "add_range_sums": "407e675396ee54d294404c67ce5afcb57f98d43eb303a94399ed112f04450b48",
    },
}
SIZES = (0, 1, 7, 31, 4097, 65_537, 200_003)
LEAVES = (1, 2, 3, 5, 8, 9, 24, 31)
WIRE_TYPES: list[WireDType] = ["fp32", "bf16", "fp16"]
LAYOUT = Layout.build(
    [
        ("table", (331, 7), True, "model.table.weight", False),
        ("projection", (7, 331), True, "model.projection.weight", True),
        ("bias", (613,), False, "model.projection.bias", False),
    ]
)
RANGES = {0: slice(0, 2317), 1: slice(2317, 4634), 2: slice(4634, 5247)}
"""Part of LAYOUT that each range has: one entry each."""
FINISHED = FinishedPass(None, None, None, 0, "")


def draw(count: int, seed: int) -> Float32Array:
    """Return [count] float32 of every exponent, with denormals, infinities and NaNs, made by exact arithmetic alone."""
    numbers = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return (numbers >> np.uint64(32)).astype(np.uint32).view(np.float32)


def draw_gradients(seed: int) -> Float32Array:
    """Return the gradient of a micro-batch of LAYOUT: finite, of exponents so far apart that sums are rounded."""
    bits = draw(LAYOUT.elements, seed).view(np.uint32)
    return ((bits & 0x8FFF_FFFF) | 0x3000_0000).view(np.float32)


def draw_ties() -> Float32Array:
    """Return the midpoints between neighbours of both 16-bit types, and the float32 values next to each midpoint."""
    stored = np.arange(1 << 16, dtype=np.uint16)
    found = []
    for dtype in WIRE_TYPES[1:]:
        with np.errstate(invalid="ignore", over="ignore"):
            values = arithmetic.from_wire(stored, dtype).astype(np.float64)
            halves = ((values[1:] + values[:-1]) / 2).astype(np.float32)
        found += [halves, np.nextafter(halves, np.float32(np.inf)), np.nextafter(halves, np.float32(-np.inf))]
    return np.concatenate(found)


class Digest:
    """A SHA-256 of arrays, texts and numbers. All NaNs of a float array are the same."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, *values: Any) -> None:
        """Add values in order."""
        for value in values:
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                value = np.where(np.isnan(value), value.dtype.type(np.nan), value)
            self._hash.update(value.tobytes() if isinstance(value, np.ndarray) else f"{value}\n".encode())

    def __str__(self) -> str:
        return self._hash.hexdigest()


def add_sums(digest: Digest) -> None:
    for size in SIZES:
        left, right = draw(size, 1), draw(size, 2)
        total = left.copy()
        arithmetic.accumulate(total, right)
        digest.add(total)
        for out in (np.empty(size, np.float32), left.copy(), right.copy()):
            arithmetic.add(left, right, out)
            digest.add(out)
        arithmetic.scale_with_norm(left, 1 / 3, total)
        digest.add(total)


def add_norms(digest: Digest) -> None:
    for size in SIZES:
        blocks = norm_squared_blocks(np.nan_to_num(draw(size, 3)))
        digest.add(blocks, gradient_norm(blocks).hex())
        digest.add(arithmetic.all_finite(draw(size, 3)), arithmetic.all_finite(np.nan_to_num(draw(size, 3))))


def add_wire_types(digest: Digest) -> None:
    ties = draw_ties()
    for dtype in WIRE_TYPES:
        for values in (*(draw(size, 4) for size in SIZES), ties):
            payload = arithmetic.to_wire(values, dtype)
            digest.add(payload, arithmetic.from_wire(payload.tobytes(), dtype))
            total = draw(values.size, 5)
            arithmetic.accumulate_wire(total, payload.tobytes(), dtype)
            digest.add(total)
    for dtype in WIRE_TYPES[1:]:
        digest.add(arithmetic.from_wire(np.arange(1 << 16, dtype="<u2").tobytes(), dtype))


def add_tree(digest: Digest) -> None:
    for count in range(2, 70):
        root = Node(3, count)
        digest.add(*map(astuple, children(root)))
        for leaf in root.micro_batches:
            digest.add(*(astuple(node) for pair in path_to(root, Node(leaf, 1)) for node in pair))


def add_layout(digest: Digest) -> None:
    digest.add(LAYOUT.dumps(), LAYOUT.hash, LAYOUT.elements, LAYOUT.chunks)
    for elements in (1, CHUNK_ELEMENTS, 3 * CHUNK_ELEMENTS + 1):
        digest.add(*(chunk_range(elements, chunk) for chunk in range(-(-elements // CHUNK_ELEMENTS))))


def write(gradient: Float32Array) -> Callable[[Float32Array, Callable[[int], None]], FinishedPass]:
    """Return what writes a gradient from its end, in two parts."""

    def compute(out: Float32Array, ready: Callable[[int], None]) -> FinishedPass:
        half = out.size // 2
        for part in (slice(half, out.size), slice(0, half)):
            out[part] = gradient[part]
            ready(part.start)
        return FINISHED

    return compute


def add_node_sums(digest: Digest) -> None:
    for leaves in LEAVES:
        add_sum(digest, {0: slice(0, LAYOUT.elements)}, (0,), leaves)


def add_range_sums(digest: Digest) -> None:
    for leaves in LEAVES:
        add_sum(digest, RANGES, (2, 0, 1), leaves)


def add_sum(digest: Digest, ranges: Mapping[int, slice], order: Sequence[int], leaves: int) -> None:
    """Add what becomes ready of a node's sum, whose leaves come range by range in an order."""
    out = np.empty(LAYOUT.elements, np.float32)
    node_sum = NodeSum(ranges, out, leaves, lambda offset: digest.add(offset, out[offset:]))
    for leaf in range(leaves):
        for index in order:
            node_sum.add_leaf(index, write(draw_gradients(leaf)[ranges[index]]))


@pytest.fixture(params=find_kernels(C), ids=lambda kernels: kernels.clone)
def _clone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute by each clone that this CPU can run."""
    with mock.patch.object(arithmetic, "KERNELS", request.param):
        yield


@pytest.mark.usefixtures("_clone")
@pytest.mark.parametrize(
    "add", [add_sums, add_norms, add_wire_types, add_tree, add_layout, add_node_sums, add_range_sums]
)
def test_a_number_of_arithmetic_stands_for_the_same_bits(add: Callable[[Digest], None]) -> None:
    digest = Digest()
    add(digest)
    found, expected = str(digest), GOLDEN[ARITHMETIC][add.__name__]
    assert found == expected, (
        f"{add.__name__}: other bits than arithmetic {ARITHMETIC} had; if they are meant, raise ARITHMETIC of "
        f"compute/code_fingerprint.py and add the hashes of the new number"
    )
