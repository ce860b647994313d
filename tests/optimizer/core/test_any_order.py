"""Any order in any state: the optimizer's core carries it out, refuses it or ignores it, and never raises."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.core import events as ev
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader
from services.protocol.envelope import wrap
from services.protocol.versions import LAST_GENERATION
from services.tensors.stripes import Stripe
from tests.support.anything import message
from tests.support.dialogues.optimizer import PLAN, Dialogue

LIKELY = {
    "job": st.just("a"),
    "epoch": st.just(1),
    "epoch_seen": st.just(1),
    "protocol": st.just(1),
    "role": st.just("aggregator"),
    "generation": st.just(1),
    "step": st.integers(0, 4),
    "kind": st.sampled_from([GRADIENT, INITIAL_WEIGHTS]),
    "index": st.integers(0, 1),
    "chunk": st.integers(0, 1),
    "chunks": st.integers(0, 2),
    "block_sums": st.lists(st.floats(0, 1e80) | st.sampled_from([math.inf, math.nan]), max_size=2),
    "layout": st.just(FileRef(sha256="layout")),
}
STAGED = st.lists(message(plane.StagedChunk, **LIKELY), max_size=2)
ORDERS = (
    pb.Hello,
    pb.Heartbeat,
    pb.Open,
    pb.Initialise,
    pb.SendWeights,
    pb.Close,
    pb.SaveCheckpoint,
    pb.StartOver,
)
STEPS = st.integers(0, 4)
STRIPES = st.sampled_from([Stripe(0, 1), Stripe(0, 2), Stripe(1, 2)])
INPUTS = st.one_of(
    st.builds(
        ev.Ordered,
        st.sampled_from([1, 1, 1, 0, 1 << 63]),
        st.one_of([message(kind, **LIKELY) for kind in ORDERS]),
    ),
    st.builds(
        ev.ChunksArrived, message(ChunkHeader, **LIKELY), st.lists(st.integers(0, 3), min_size=1, max_size=3)
    ),
    st.builds(
        ev.ChunksArrived, message(ChunkHeader, **LIKELY), st.lists(st.integers(0, 3), min_size=1, max_size=3)
    ),
    st.builds(ev.Connected, message(pb.Hello, **LIKELY)),
    st.builds(ev.FromPlane, STRIPES, message(plane.StagedChunks, **{**LIKELY, "chunks": STAGED})),
    st.builds(ev.FromPlane, STRIPES, message(plane.UpdatedPart, **LIKELY)),
    st.builds(ev.Loaded, st.just("a"), st.just(PLAN), st.integers(0, 2) | st.just(LAST_GENERATION)),
    st.builds(ev.Allocated, st.just("a"), st.just("layout"), st.just(2 << 18)),
    st.builds(ev.Saved, message(pb.CheckpointWritten, **LIKELY)),
    st.builds(ev.SaveFailed, st.just("a"), st.just(1), STEPS, st.just("disk full"), st.booleans()),
    st.just(ev.RetryDue("a")),
    st.sampled_from([ev.Disconnected(), ev.TensorsLost(), ev.OperationFailed("a", "no room")]),
)


def opened() -> Dialogue:
    dialogue = Dialogue()
    dialogue.open()
    dialogue.loaded()
    return dialogue


def receiving() -> Dialogue:
    dialogue = opened()
    dialogue.order(pb.Initialise(job="a", layout=FileRef(sha256="layout")))
    dialogue.give(ev.Allocated("a", "layout", dialogue.elements))
    return dialogue


def training() -> Dialogue:
    dialogue = Dialogue()
    dialogue.open()
    dialogue.loaded(step=0)
    return dialogue


STATES: dict[str, Callable[[], Dialogue]] = {
    "connected": Dialogue,
    "empty": opened,
    "receiving": receiving,
    "training": training,
}


@pytest.mark.parametrize("state", STATES)
@settings(max_examples=120, deadline=None)
@given(inputs=st.lists(INPUTS, min_size=1, max_size=12))
def test_no_input_stops_an_optimizer(state: str, inputs: list[ev.Input]) -> None:
    dialogue = STATES[state]()
    for event in inputs:
        effects = dialogue.core.handle(event)
        assert len(effects) <= 4
        for effect in effects:
            if isinstance(effect, ev.ToAggregator):
                wrap(pb.OptimizerMessage, dialogue.core.epoch, effect.body).SerializeToString()


def test_a_job_that_needs_a_generation_after_the_last_fails() -> None:
    dialogue = Dialogue()
    dialogue.open(generation=LAST_GENERATION)
    (failure,) = dialogue.loaded()
    assert failure.startswith("send failure: ") and str(LAST_GENERATION) in failure
    assert not dialogue.core.has_open("a")
