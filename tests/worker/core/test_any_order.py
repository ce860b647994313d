"""Random orders in random states: the worker's core obeys or ignores each, and its memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.pipeline.split import StageRun
from services.protocol.envelope import wrap
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS
from tests.support.anything import message
from tests.support.dialogues.worker import Dialogue, start_with_weights
from worker.core import events as ev
from worker.core.leases import MOST_LEASES, MOST_WINDOWS

CHUNKS = 3
LIKELY = {
    "job": st.just("a"),
    "epoch": st.just(1),
    "generation": st.just(1),
    "step": st.integers(0, 3),
    "lease": st.integers(1, 4),
    "phase": st.sampled_from([pb.INITIALISE, pb.TRAIN, pb.EVALUATE, pb.VERIFY]),
    "index": st.integers(0, CHUNKS - 1),
    "offset": st.integers(0, CHUNKS - 1).map(lambda chunk: chunk * CHUNK_ELEMENTS),
    "elements": st.sampled_from([CHUNK_ELEMENTS, CHUNK_ELEMENTS, 100]),
    "row": st.integers(0, 2),
    "first_stage": st.integers(0, 1),
    "stages": st.integers(0, 1),
}
ORDERS = (pb.Welcome, pb.Heartbeat, pb.Join, pb.Row, pb.Lease, pb.Revoke, pb.Resend, pb.Window, pb.Leave)
LEASES = st.integers(1, 4)
INPUTS = st.one_of(
    st.builds(
        ev.Ordered,
        st.sampled_from([1, 1, 1, 0, 2, (1 << 64) - 1]),
        st.one_of([message(kind, **LIKELY) for kind in ORDERS]),
    ),
    st.builds(ev.WeightsArrived, message(ChunkHeader, **LIKELY)),
    st.builds(ev.NodeReady, LEASES, st.integers(0, CHUNKS * CHUNK_ELEMENTS), st.just((1.0, 2.0))),
    st.builds(ev.LeaseComputed, LEASES, st.just(1.0), st.just(8)),
    st.builds(ev.LeaseFailed, LEASES, st.just("broke")),
    st.builds(ev.Loaded, st.just("a"), st.builds(Version, st.just(1), st.integers(0, 3))),
    st.builds(
        ev.BuildFailed,
        st.just("a"),
        st.just("no mesh"),
        st.booleans(),
        st.sampled_from([None, StageRun(1, 1)]),
        st.booleans(),
    ),
    st.builds(ev.LoadFailed, st.just("a"), st.just("memory is full")),
    st.builds(
        ev.InputDamaged,
        st.just("a"),
        st.sampled_from([None, ev.DamagedInput("ids.bin", 1)]),
        st.just("differs"),
    ),
    st.builds(ev.BuildDue, st.integers(0, 3)),
    st.sampled_from([ev.Connected(), ev.Disconnected()]),
)


def connect() -> Dialogue:
    talk = Dialogue(CHUNKS)
    talk.connect()
    return talk


def lease_all() -> Dialogue:
    talk = start_with_weights(CHUNKS)
    talk.lease(1)
    return talk


def join_row() -> Dialogue:
    talk = Dialogue(
        CHUNKS, StageRun(1, 1), parts=[(CHUNK_ELEMENTS, CHUNKS * CHUNK_ELEMENTS)], shared=[(0, 100)]
    )
    talk.connect()
    talk.join()
    talk.built()
    talk.order(pb.Row(job="a", row=1))
    return talk


STATES: dict[str, Callable[[], Dialogue]] = {
    "alone": lambda: Dialogue(CHUNKS),
    "connected": connect,
    "with weights": lambda: start_with_weights(CHUNKS),
    "leased": lease_all,
    "in a row": join_row,
}


@pytest.mark.parametrize("state", STATES)
@settings(max_examples=120, deadline=None)
@given(inputs=st.lists(INPUTS, min_size=1, max_size=12))
def test_no_sequence_of_orders_breaks_the_core(state: str, inputs: list[ev.Input]) -> None:
    talk = STATES[state]()
    for event in inputs:
        for effect in talk.core.handle(event):
            if isinstance(effect, ev.PlaneOrder):
                talk.queue.carry_out(effect)
            elif isinstance(effect, ev.ToAggregator):
                wrap(pb.WorkerMessage, talk.core.epoch, effect.body).SerializeToString()
    sent = sum(1 for _ in iter(talk.take_next, None))
    assert sent <= CHUNKS * len(talk.core.leases)


def test_leases_beyond_the_maximum_are_refused() -> None:
    talk = start_with_weights()
    for lease in range(1, MOST_LEASES + 1):
        assert talk.lease(lease) == [f"perform {lease}"]
    (line,) = talk.lease(MOST_LEASES + 1)
    assert line.startswith("send Failure: ") and f"{MOST_LEASES} leases" in line


def test_windows_beyond_the_maximum_are_forgotten() -> None:
    talk = start_with_weights()
    for step in range(3 * MOST_WINDOWS):
        talk.order(pb.Window(job="a", generation=1, step=step, limit=1))
    assert len(talk.core.windows) <= MOST_WINDOWS


def test_a_mesh_that_stays_unfit_is_tried_again_without_end() -> None:
    talk = connect()
    talk.join()
    for attempt in range(1, 1200):
        (_, line) = talk.give(ev.BuildFailed("a", "no mesh", unfit=True))
        talk.give(ev.BuildDue(attempt))
    assert line == "build after 300 s (1199)"


def test_a_chunk_that_a_lease_names_often_is_queued_once() -> None:
    talk = start_with_weights()
    everything = pb.Range(first=0, count=(1 << 32) - 1)
    talk.order(
        pb.Lease(job="a", generation=1, lease=5, phase=pb.TRAIN, count=1, chunks=[everything] * 200_000)
    )
    talk.give(ev.NodeReady(5, 0))
    assert talk.sent() == ["5 #2", "5 #1", "5 #0"]
