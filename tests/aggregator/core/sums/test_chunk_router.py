"""Tests of the types that chunks are sent in: float32 for finished sums, the job's wire type for weights."""

from __future__ import annotations

from aggregator.core.events import Outbox
from aggregator.core.sums.chunk_router import ChunkRouter
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, GRADIENT, WEIGHTS
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS


def test_a_finished_sum_is_float32_whatever_gradients_came_in() -> None:
    router = ChunkRouter("job", 1, WireTypes(gradients=BFLOAT16, weights=FLOAT16), Outbox())
    assert router.make_header(Version(1, 3), 0, 100, GRADIENT).dtype == FLOAT32
    assert router.make_header(Version(1, 3), 0, 100, WEIGHTS).dtype == FLOAT16


def test_weights_of_which_the_first_part_came_before_a_resume_come_again() -> None:
    router, elements = ChunkRouter("job", 1, WireTypes(), Outbox()), 3 * CHUNK_ELEMENTS
    router.weights.begin(Version(1, 2), elements)
    arrived = [chunk for chunk in (1, 2, 0, 1, 1, 2, 2) if router.weights.add(chunk)]
    assert arrived == [0, 1, 2] and router.weights.complete
