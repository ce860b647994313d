"""The worker's core decides which chunks may be sent: computed ones, in the agreed order, inside the window."""

from __future__ import annotations

from typing import Any

import pytest

from protos import cluster_pb2 as pb
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, GRADIENT, INITIAL_WEIGHTS, NonFinite
from services.protocol.plan import WINDOW_CHUNKS, WireTypes
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.stripes import Stripe
from tests.support.chunk_sets import to_ranges
from tests.support.dialogues.worker import Dialogue, start_with_weights
from worker.core import events as ev


def test_a_node_is_sent_last_chunk_first_as_it_becomes_ready() -> None:
    talk = start_with_weights()
    talk.lease(7)
    assert talk.lease(7) == [], "repeated"
    assert talk.sent() == []
    talk.give(ev.NodeReady(7, CHUNK_ELEMENTS))
    assert talk.sent() == ["7 #2", "7 #1"]
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == ["7 #0 losses [1.0, 2.0]"]
    assert talk.give(ev.LeaseComputed(7, 1.0, 10)) == ["send Computed"]


def test_each_stripe_sends_its_chunks_in_the_agreed_order() -> None:
    talk = start_with_weights(7)
    talk.lease(5)
    talk.give(ev.NodeReady(5, CHUNK_ELEMENTS))

    def take_sent(index: int) -> list[int]:
        taken = []
        while (header := talk.take_next(Stripe(index, 3))) is not None:
            taken.append(header.index)
        return taken

    assert take_sent(1) == [4, 1]
    assert take_sent(0) == [6, 3], "chunk 0 is not computed yet"
    assert take_sent(2) == [5, 2]


def test_non_finite_gradients_are_named_with_chunk_0_each_time_it_is_sent() -> None:
    talk = start_with_weights()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0), (NonFinite(micro_batch=1, parameter="w"),), 20))
    assert talk.sent() == ["7 #2", "7 #1", "7 #0 losses [1.0, 2.0] not finite 1, 20 count"]
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0])))
    assert talk.sent() == ["7 #0 losses [1.0, 2.0] not finite 1, 20 count"]


def test_only_the_chunks_that_a_lease_names_are_sent() -> None:
    talk = start_with_weights()
    talk.lease(7, chunks=[0, 2])
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    assert talk.sent() == ["7 #2", "7 #0 losses [1.0, 2.0]"]


def test_chunks_are_sent_again_when_asked() -> None:
    talk = start_with_weights()
    talk.lease(7)
    talk.give(ev.NodeReady(7, 0, (1.0, 2.0)))
    talk.sent()
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0, 2])))
    assert talk.sent() == ["7 #2", "7 #0 losses [1.0, 2.0]"]
    talk.order(pb.Resend(job="a", lease=99, chunks=to_ranges([0])))
    assert talk.sent() == []


def test_nothing_is_sent_beyond_the_window() -> None:
    talk = start_with_weights(chunks=40)
    talk.lease(7)
    talk.lease(8)
    for lease in (7, 8):
        talk.give(ev.NodeReady(lease, 0, (1.0, 2.0)))
    assert len(talk.sent()) == 2 * WINDOW_CHUNKS, "of each lease, the chunks inside the window"
    talk.order(pb.Window(job="a", generation=1, step=0, limit=WINDOW_CHUNKS + 8))
    talk.order(pb.Window(job="a", generation=1, step=0, limit=WINDOW_CHUNKS + 4))
    last = 39 - WINDOW_CHUNKS
    assert talk.sent() == [f"{lease} #{chunk}" for lease in (7, 8) for chunk in range(last, last - 4, -1)], (
        "the newest window counts, also a narrower one: it starts over after sums were lost"
    )


def test_a_window_belongs_to_one_aggregator() -> None:
    talk = start_with_weights(chunks=40)
    talk.order(pb.Window(job="a", generation=1, step=0, limit=40))
    talk.give(ev.Disconnected())
    talk.connect(epoch=2)
    talk.join()
    talk.lease(9)
    talk.give(ev.NodeReady(9, 0, (1.0, 2.0)))
    assert len(talk.sent()) == WINDOW_CHUNKS


@pytest.mark.parametrize(
    ("phase", "changed"),
    [
        (pb.TRAIN, {"count": (1 << 32) - 1}),
        (pb.TRAIN, {"first": (1 << 32) - 1}),
        (pb.VERIFY, {"checksums": [1 << 20]}),
        (pb.EVALUATE, {"count": 1 << 20}),
    ],
)
def test_a_lease_of_more_work_than_the_job_has_is_refused(phase: pb.Phase, changed: dict[str, Any]) -> None:
    """Sums of 2^32 micro-batches would take 32 copies of the model, and their losses without end."""
    talk = start_with_weights()
    lease = pb.Lease(
        **{"job": "a", "generation": 1, "lease": 7, "phase": phase, "first": 0, "count": 1, **changed}
    )
    (line,) = talk.order(lease)
    assert line.startswith("send Failure: lease 7 asks for ") and "expected at most the job's" in line
    assert not talk.core.leases


def test_initial_weights_are_sent_first_chunk_first_when_asked() -> None:
    talk = Dialogue()
    talk.connect()
    talk.join()
    talk.built()
    assert talk.lease(7, 0, 0, phase=pb.INITIALISE) == ["perform 7"]
    assert talk.give(ev.InitialWeightsMade(7, FileRef(), {})) == ["send Description"]
    assert talk.sent() == [], "the optimizer asks for the chunks it misses"
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0, 2])))
    header = talk.take_next()
    assert header is not None and (header.index, header.kind) == (0, INITIAL_WEIGHTS)
    assert talk.sent() == ["7 #2"]


def test_gradients_have_the_job_s_wire_type_and_initial_weights_float32() -> None:
    talk = Dialogue(chunks=1)
    talk.connect()
    talk.join()
    wire = WireTypes(gradients=BFLOAT16, weights=FLOAT16)
    talk.give(ev.Built("a", "hash", CHUNK_ELEMENTS, 2, 10, wire=wire))
    talk.lease(7, 0, phase=pb.INITIALISE)
    talk.give(ev.InitialWeightsMade(7, FileRef(), {}))
    talk.order(pb.Resend(job="a", lease=7, chunks=to_ranges([0])))
    initial = talk.take_next()
    talk.weights(1, 0)
    talk.loaded(1, 0)
    talk.lease(8)
    talk.give(ev.NodeReady(8, 0, (1.0, 2.0)))
    gradient = talk.take_next()
    assert initial is not None and (initial.kind, initial.dtype) == (INITIAL_WEIGHTS, FLOAT32)
    assert gradient is not None and (gradient.kind, gradient.dtype) == (GRADIENT, BFLOAT16)
