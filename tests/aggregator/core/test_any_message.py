"""Tests that no message from a worker or optimizer, in any state, breaks the aggregator's core."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregator.core import events as ev
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.protocol.envelope import wrap
from services.tensors.layout import CHUNK_ELEMENTS
from tests.support.anything import message
from tests.support.dialogues.aggregator import FINGERPRINT, Dialogue, arrived, layout_of, training
from tests.support.dialogues.rows import training_rows
from tests.support.facts import has_facts

EPOCH, CHUNKS = 3, 3
MOST_EFFECTS = 60
"""Limit of effects per input, given the few workers, chunks and micro-batches of these jobs."""

LEASES = st.integers(1, 8).map(lambda number: (EPOCH << 32) + number)
SUMS = st.sampled_from([1.0, -1.0, 1e308, math.inf, -math.inf, math.nan])
LIKELY = {
    "job": st.just("a"),
    "epoch": st.just(EPOCH),
    "generation": st.just(1),
    "step": st.integers(0, 4),
    "lease": LEASES,
    "first": st.integers(0, 3),
    "count": st.integers(1, 4),
    "index": st.integers(0, CHUNKS - 1),
    "offset": st.sampled_from([0, CHUNK_ELEMENTS // 2, CHUNK_ELEMENTS]),
    "elements": st.sampled_from(
        [CHUNK_ELEMENTS // 2, *(layout_of(chunks).elements for chunks in (1, CHUNKS))]
    ),
    "first_stage": st.integers(0, 1),
    "stages": st.integers(1, 2),
    "neighbour": st.sampled_from(["", "w1", "w2", "w9"]),
    "layout_hash": st.just(layout_of(CHUNKS).hash),
    "fingerprint": st.just(FINGERPRINT),
    "protocol": st.just(1),
    "role": st.just("worker"),
    "shard_index": st.just(0),
    "shard_count": st.just(1),
    "epoch_seen": st.just(0),
    "evaluation_batches": st.integers(0, 4),
    "checksums": st.lists(
        st.builds(pb.Checksum, micro_batch=st.integers(0, 3), crc32c=st.integers(0, 1)), max_size=4
    ),
    "losses": st.lists(
        st.builds(pb.BatchLoss, index=st.integers(0, 3), sum=SUMS, tokens=st.integers(0, 5)), max_size=4
    ),
}
SESSIONS = st.integers(1, 4)


MICRO_BATCH_LOSSES = {**LIKELY, "losses": st.lists(SUMS, max_size=4)}


def messages(*kinds: Any) -> st.SearchStrategy[Any]:
    likely = {pb.Computed: MICRO_BATCH_LOSSES}
    return st.one_of([message(kind, **likely.get(kind, LIKELY)) for kind in kinds])


def headers() -> st.SearchStrategy[ChunkHeader]:
    """Return a strategy for headers that data streams would accept, so with an index within the layout."""
    return message(ChunkHeader, **MICRO_BATCH_LOSSES).filter(lambda header: header.index < CHUNKS)


WORKER_MESSAGES = messages(
    pb.Ready,
    pb.Description,
    pb.WeightsLoaded,
    pb.Computed,
    pb.Evaluated,
    pb.Failure,
    pb.Fetching,
    pb.Printed,
    pb.Heartbeat,
    pb.Hello,
)
OPTIMIZER_MESSAGES = messages(
    pb.OptimizerStatus, pb.Commit, pb.CheckpointWritten, pb.Failure, pb.Heartbeat, pb.Hello
)
INPUTS = st.one_of(
    st.builds(ev.FromWorker, SESSIONS, st.sampled_from([EPOCH, EPOCH, EPOCH, 0, 1 << 63]), WORKER_MESSAGES),
    st.builds(ev.FromOptimizer, OPTIMIZER_MESSAGES),
    st.builds(
        lambda session, run, in_place: arrived(session, *run, in_place=in_place),
        SESSIONS,
        st.lists(headers(), min_size=1, max_size=3),
        st.booleans(),
    ),
    st.builds(ev.WeightsArrived, headers()),
    st.builds(ev.WorkerConnected, SESSIONS, messages(pb.Hello), st.sampled_from(["", "host:1"])),
    st.builds(ev.DataStreamOpened, SESSIONS),
    st.builds(ev.WorkerLost, SESSIONS, st.just("gone")),
    st.sampled_from([ev.Ticked(), ev.OptimizerConnected("opt"), ev.OptimizerLost("gone")]),
)


def connected() -> Dialogue:
    dialogue = Dialogue(epoch=EPOCH, chunks=CHUNKS)
    dialogue.submit()
    dialogue.optimizer()
    dialogue.hello(1)
    dialogue.give(ev.DataStreamOpened(1))
    return dialogue


def initialising() -> Dialogue:
    dialogue = connected()
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    dialogue.ready(1)
    return dialogue


STATES: dict[str, Callable[[], Dialogue]] = {
    "idle": lambda: Dialogue(epoch=EPOCH, chunks=CHUNKS),
    "connected": connected,
    "initialising": initialising,
    "training": lambda: training(1, 2, chunks=CHUNKS),
    "checking": lambda: training(1, 2, chunks=CHUNKS, verify_fraction=1.0),
    "evaluating": lambda: training(1, step=4, chunks=CHUNKS),
    "rows": lambda: training_rows(1, 2, chunks=CHUNKS),
    "rows in evaluation": lambda: training_rows(1, 2, 3, step=4, chunks=CHUNKS),
    "rows that check": lambda: training_rows(1, 2, 3, 4, chunks=CHUNKS, verify_fraction=1.0),
}


@pytest.mark.parametrize("state", STATES)
@settings(max_examples=120, deadline=None)
@given(inputs=st.lists(st.tuples(INPUTS, st.sampled_from([0.0, 0.1, 20.0, 700.0])), min_size=1, max_size=12))
def test_no_message_of_a_peer_stops_the_aggregator(state: str, inputs: list[tuple[ev.Input, float]]) -> None:
    dialogue = STATES[state]()
    for event, seconds in inputs:
        dialogue.now += seconds
        effects = dialogue.core.handle(event, dialogue.clock)
        assert len(effects) <= MOST_EFFECTS
        for effect in effects:
            match effect:
                case ev.ToWorker():
                    wrap(pb.WorkerCommand, EPOCH, effect.body).SerializeToString()
                case ev.ToOptimizer(body=pb.Close(job=job)) if job not in dialogue.plans:
                    assert isinstance(event, ev.FromOptimizer), "it has named a job that does not run"
                case ev.ToOptimizer():
                    wrap(pb.OptimizerCommand, EPOCH, effect.body).SerializeToString()
        sent = [each.session for each in effects if isinstance(each, plane.SendVersion)]
        assert len(sent) == len(set(sent))
        dialogue.status().SerializeToString()
    assert len(dialogue.core.members) <= 4


def test_losses_that_have_no_sum_are_not_a_number() -> None:
    dialogue = training(1, step=4)
    assert dialogue.job().phase == "evaluate"
    for index, loss in enumerate((math.inf, -math.inf, 1.0)):
        dialogue.evaluated(1, 1, 4, (index, loss))
    assert math.isnan(dialogue.job().validation_loss)
    dialogue = training(1)
    dialogue.chunk(1, 1, 0, 0, losses=(1e308, 1e308, 1e308, 1.0))
    dialogue.commits(1, 0)
    assert math.isnan(dialogue.job().loss)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_a_duration_that_can_not_be_is_that_of_the_aggregators_clock(seconds: float) -> None:
    dialogue = training(1)
    dialogue.later(2.0, 1)
    dialogue.computed(1, seconds)
    assert dialogue.core.members[1].speed == 2.0, "4 micro-batches in 2 s"


def test_too_many_held_out_batches_are_refused() -> None:
    dialogue = connected()
    dialogue.stands(1, 0, state=pb.OptimizerStatus.EMPTY)
    body = pb.Ready(job="a", build=1, elements=1, evaluation_batches=(1 << 32) - 1, fingerprint=FINGERPRINT)
    line = dialogue.says(1, body)[0]
    assert line.startswith("1 <- leave: ")
    assert has_facts(line, "4294967295 held-out batches ... 262144 ... validation_batch_size")


def test_an_optimizer_beyond_the_end_of_the_job_fails_it() -> None:
    dialogue = training(1)
    lines = dialogue.stands(2, (1 << 64) - 1)
    assert lines[:2] == [
        "save a failed",
        "1 <- leave: the optimizer is at step 18446744073709551615, the job has 4 steps",
    ]
