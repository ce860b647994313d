"""Tests of the work that one input of the largest legal job makes: many workers, micro-batches, chunks and batches."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aggregator.core import events as ev
from optimizer.core.open_job import OpenJob
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, ChunkHeader, Findings
from services.config.bounds import MOST_CHECKS
from services.config.field_types import MOST_MICRO_BATCHES
from services.protocol.checksums import encode_with_checksum
from services.protocol.envelope import wrap
from services.protocol.plain_text import make_printable
from services.protocol.plan import MOST_EVALUATION_BATCHES
from services.tensors.layout import CHUNK_ELEMENTS, MAX_ELEMENTS
from services.tensors.reduction_tree import Node
from tests.support.dialogues.aggregator import Dialogue
from tests.support.processor_time import limit_work

WORKERS = 128
CHUNKS = MAX_ELEMENTS // CHUNK_ELEMENTS
LIMIT_SECONDS = 2.0
"""Limit of an input's processor time: 0.05 on an idle machine. A loop over pairs of micro-batches takes minutes."""


class TimedDialogue(Dialogue):
    """A dialogue that measures each input.

    Attributes:
        slowest: the longest processor time of an input, by kind of input.
        orders: the leases that each worker has been given and has not reported.
        inputs: number of inputs so far.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.slowest: dict[str, float] = {}
        self.orders: dict[int, list[pb.Lease]] = {}
        self.inputs = 0

    def give(self, event: ev.Input) -> list[str]:
        """Give the core an input and measure it."""
        began = time.thread_time()
        effects = self.core.handle(event, self.clock)
        seconds = time.thread_time() - began
        kind = type(getattr(event, "body", event)).__name__
        self.slowest[kind] = max(seconds, self.slowest.get(kind, 0.0))
        for effect in effects:
            if isinstance(effect, ev.ToWorker) and isinstance(effect.body, pb.Lease):
                self.orders.setdefault(effect.session, []).append(effect.body)
                self.leases[effect.session] = effect.body.lease
            if isinstance(effect, ev.ToWorker | ev.ToOptimizer):
                assert effect.body.ByteSize() < 4 << 20
        self.inputs += 1
        if self.inputs % 50 == 0:
            began = time.thread_time()
            self.status()
            self.slowest["status"] = max(time.thread_time() - began, self.slowest.get("status", 0.0))
        return []

    def do(self, session: int, lease: pb.Lease, rng: random.Random) -> None:
        """Report that a worker has computed a lease, with its last chunks in the agreed order and its checksums."""
        if lease.phase == pb.TRAIN:
            for index in (CHUNKS - 1, CHUNKS - 2, rng.randrange(CHUNKS), 0):
                losses = [1.0] * lease.count if index == 0 else ()
                self.chunk(session, 1, lease.step, index, lease=lease.lease, losses=tuple(losses))
        checksums = dict.fromkeys(lease.checksums, 7)
        self.computed(session, rng.uniform(0.5, 2.0), lease=lease.lease, checksums=checksums)


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def start(**plan: Any) -> TimedDialogue:
    """Return a cluster in the first step of the largest job."""
    dialogue = TimedDialogue(chunks=CHUNKS)
    dialogue.submit(**{"steps": 100, "micro_batches": MOST_MICRO_BATCHES, **plan})
    dialogue.optimizer()
    for session in range(1, WORKERS + 1):
        dialogue.hello(session)
        dialogue.give(ev.DataStreamOpened(session))
        dialogue.says(
            session,
            pb.Ready(
                job="a",
                build=1,
                layout_hash=dialogue.layout.hash,
                elements=dialogue.layout.elements,
                evaluation_batches=MOST_EVALUATION_BATCHES,
                holds=True,
                generation=1,
                tokens_per_micro_batch=1 << 24,
            ),
        )
    dialogue.stands(1, 0)
    return dialogue


def check(dialogue: TimedDialogue) -> None:
    slow = {kind: seconds for kind, seconds in dialogue.slowest.items() if seconds > LIMIT_SECONDS}
    assert not slow, dialogue.slowest


@pytest.mark.parametrize("fraction", [0.0, MOST_CHECKS / MOST_MICRO_BATCHES])
def test_steps_with_dying_and_joining_workers(fraction: float) -> None:
    rng = random.Random(1)
    dialogue = start(verify_fraction=fraction, on_faulty="go_on")
    for step in range(2):
        for turn in range(WORKERS):
            session = rng.choice(list(dialogue.core.members))
            orders = dialogue.orders.get(session, [])
            if orders:
                dialogue.do(session, orders.pop(0), rng)
            if turn % 40 == 20:
                dialogue.orders.pop(session, None)
                dialogue.give(ev.WorkerLost(session, "died"))
                dialogue.joins(1000 * (step + 1) + turn, holds=(1, step))
            if turn % 25 == 0:
                dialogue.later(2.0, *dialogue.core.members)
        # The optimizer has lost some chunks.
        dialogue.give(ev.OptimizerLost("the link broke"))
        dialogue.optimizer()
        dialogue.stands(1, step, missing=range(0, CHUNKS, 256))
        dialogue.orders.clear()
        dialogue.commits(1, step)
        for session in list(dialogue.core.members):
            dialogue.weights_loaded(session, 1, step + 1)
    check(dialogue)


@pytest.mark.long
def test_an_optimizer_that_lost_every_second_chunk() -> None:
    dialogue = start()
    for index in range(CHUNKS):
        dialogue.run.lease_book.step_sum.coverage.add(Node(0, MOST_MICRO_BATCHES), index)
    dialogue.give(ev.OptimizerLost("the link broke"))
    dialogue.optimizer()
    job = OpenJob("a", dialogue.run.plan, 1)
    job.set_layout(dialogue.layout.hash, dialogue.layout.elements)
    job.state = pb.OptimizerStatus.TRAINING
    for index in range(0, CHUNKS, 2):
        job.staged.add(index)
    with limit_work(LIMIT_SECONDS):
        status = job.optimizer_status()
        encode_with_checksum(wrap(pb.OptimizerMessage, 1, status))
        make_printable(status)
    dialogue.give(ev.FromOptimizer(status))
    check(dialogue)


def test_an_evaluation_of_the_most_batches() -> None:
    rng = random.Random(1)
    dialogue = start(evaluate_every=1)
    dialogue.orders.clear()
    dialogue.commits(1, 0)
    assert dialogue.job().phase == "evaluate"
    for session in list(dialogue.core.members):
        dialogue.weights_loaded(session, 1, 1)
    while dialogue.job().phase == "evaluate":
        session = rng.choice([each for each, orders in dialogue.orders.items() if orders])
        lease = dialogue.orders[session].pop()
        if rng.random() < 0.05:
            dialogue.says(session, pb.Failure(job="a", lease=lease.lease, reason="out of memory"))
            continue
        losses = [
            pb.BatchLoss(index=index, sum=1.5, tokens=1)
            for index in range(lease.first, lease.first + lease.count)
        ]
        dialogue.says(session, pb.Evaluated(job="a", generation=1, step=1, lease=lease.lease, losses=losses))
    assert dialogue.job().validation_loss == 1.5
    check(dialogue)


def test_one_worker_computes_the_whole_step() -> None:
    dialogue = start()
    for session in range(2, WORKERS + 1):
        dialogue.give(ev.WorkerLost(session, "died"))
    for each in dialogue.orders[1]:
        dialogue.do(1, each, random.Random(1))
    header = ChunkHeader(
        job="a",
        epoch=3,
        generation=1,
        lease=dialogue.leases[1],
        kind=GRADIENT,
        findings=Findings(losses=[1.0] * MOST_MICRO_BATCHES),
    )
    assert header.ByteSize() < 1 << 20
    check(dialogue)
