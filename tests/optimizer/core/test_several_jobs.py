"""Several jobs in an optimizer's core: each goes its own way, and only checkpoints take turns.

Each string is one effect; those of other jobs than `a` begin with the job.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from optimizer.core import events as ev
from optimizer.core.job_core import JobCore
from optimizer.core.optimizer import OptimizerCore
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import GRADIENT, ChunkHeader, Findings
from services.protocol.plan import JobPlan
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.stripes import Stripe
from tests.support.dialogues.optimizer import Dialogue, training

EVERY_STEP = JobPlan(steps=9, micro_batches=2, checkpoint_every=1)
SELDOM = replace(EVERY_STEP, checkpoint_every=0)

# ---- opening and closing ----


def test_opening_a_job_closes_no_other() -> None:
    dialogue = training()
    assert dialogue.open("b") == ["load b"]
    assert dialogue.chunk(0) == ["stage #0"], "while the other one loads"
    assert dialogue.loaded("b", step=2) == [
        "b: save generation 1",
        "b: send training 1.2, missing #0 #1",
        "b: send checkpoint 0.2",
    ]
    assert dialogue.chunk(1) == ["stage #1"]
    assert dialogue.chunk(1, step=2, job="b") == ["b: stage #1"]
    assert dialogue.staged() == ["send commit 1.0", "update step 0", "weights 1.1"]


def test_a_closed_job_leaves_the_others() -> None:
    dialogue = training(jobs="ab")
    dialogue.chunk(0, job="b")
    assert dialogue.order(pb.Close(job="a")) == ["send checkpoint 0.0", "drop job"]
    assert not dialogue.core.has_open("a") and dialogue.core.has_open("b")
    assert dialogue.chunk(1) == []
    assert dialogue.chunk(1, job="b") == ["b: stage #1"]
    assert dialogue.staged(job="b")[0] == "b: send commit 1.0"


def test_an_aggregator_that_connects_is_told_of_every_open_job() -> None:
    dialogue = training(jobs="ab")
    dialogue.open("c")
    dialogue.chunk(0, job="b")
    dialogue.give(ev.Disconnected())
    assert dialogue.connect(2) == [
        "save epoch 2",
        "send training 1.0, missing #0 #1",
        "send checkpoint 0.0",
        "b: send training 1.0, missing #1",
        "b: send checkpoint 0.0",
    ]
    assert dialogue.loaded("c")[-1] == "c: send empty 1.0, missing nothing", "once it is loaded"


def test_a_lost_close_is_made_up_for_when_the_aggregator_connects() -> None:
    """The aggregator closes what it does not run, and the weights of the last COMMIT are kept."""
    dialogue = training(plan=SELDOM, jobs="ab")
    dialogue.step(1, 0)
    dialogue.connect(2)
    assert dialogue.order(pb.Close(job="a", checkpoint=True)) == [
        "snapshot 1.1",
        "send checkpoint 0.0",
        "drop job",
    ]


def test_lost_tensors_are_those_of_all_jobs() -> None:
    dialogue = training(jobs="ab")
    dialogue.open("c")
    assert dialogue.give(ev.TensorsLost()) == ["drop job", "b: drop job"]
    assert not dialogue.core.jobs


def test_a_job_that_fails_to_load_leaves_the_others() -> None:
    dialogue = training()
    dialogue.open("b")
    assert dialogue.give(ev.OperationFailed("b", "flipped byte")) == ["b: send failure: flipped byte"]
    assert list(dialogue.core.jobs) == ["a"]


# ---- checkpoints take turns ----


def test_checkpoints_are_taken_one_at_a_time_the_longest_due_first() -> None:
    dialogue = training(plan=EVERY_STEP, jobs="abc")
    assert dialogue.step(1, 0) == ["snapshot 1.1"]
    assert dialogue.step(1, 0, job="c") == [], "it waits, and that is no news"
    assert dialogue.step(1, 0, job="b") == []
    (missed,) = dialogue.step(1, 1)
    assert missed.startswith("send no checkpoint 1.2: the checkpoint of step 1 is still being written")
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1", "c: snapshot 1.1"]
    (missed,) = dialogue.step(1, 1, job="b")
    assert missed.startswith("b: send no checkpoint 1.2: the checkpoint of step 1 of job c is still being")
    assert dialogue.save_failed(1, 1, job="c") == [
        "c: send no checkpoint 1.1: disk full",
        "b: snapshot 1.2",
    ], "it keeps its turn, with newer weights"
    assert dialogue.saved(1, 2, job="b") == ["b: send checkpoint 1.2", "snapshot 1.2"]


def test_a_job_in_an_update_keeps_its_turn() -> None:
    dialogue = training(plan=EVERY_STEP, jobs="abc")
    dialogue.step(1, 0)
    dialogue.step(1, 0, job="b")
    dialogue.step(1, 0, job="c")
    for chunk in (0, 1):
        dialogue.chunk(chunk, step=1, job="b")
    dialogue.staged(job="b")
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1"], "all weights of b must be of one step first"
    dialogue.updated(1, [0], job="b")
    assert dialogue.updated(1, [1], job="b") == ["b: snapshot 1.2"]


def test_a_checkpoint_that_waits_for_space_delays_no_other_job() -> None:
    dialogue = training(plan=SELDOM, step=8, jobs="ab")
    assert dialogue.step(1, 8) == ["snapshot 1.9"]
    assert dialogue.step(1, 8, job="b") == []
    *_, later, other = dialogue.save_failed(1, 9, out_of_space=True)
    assert (later, other) == ("retry later", "b: snapshot 1.9")
    assert dialogue.give(ev.RetryDue("a")) == [], "the other one is being written"
    assert dialogue.saved(1, 9, job="b") == ["b: send checkpoint 1.9", "snapshot 1.9"]


def test_a_failed_job_gives_up_its_turn() -> None:
    dialogue = training(plan=EVERY_STEP, jobs="abc")
    for job in "abc":
        dialogue.step(1, 0, job=job)
    dialogue.give(ev.OperationFailed("b", "broken"))
    assert dialogue.saved(1, 1)[-1] == "c: snapshot 1.1"


def test_the_first_checkpoint_of_a_job_waits_for_that_of_another() -> None:
    dialogue = training(plan=EVERY_STEP)
    dialogue.open("b")
    dialogue.loaded("b", plan=EVERY_STEP)
    dialogue.order(pb.Initialise(job="b", layout=FileRef(sha256="layout")))
    dialogue.give(ev.Allocated("b", "layout", dialogue.elements))
    dialogue.step(1, 0)
    dialogue.initial(0, "b")
    assert dialogue.initial(1, "b") == ["b: store #1"]
    assert dialogue.saved(1, 1)[-1] == "b: snapshot 1.0"
    assert dialogue.saved(1, 0, job="b")[0] == "b: send training 1.0, missing #0 #1"


def test_a_stop_saves_the_weights_of_all_jobs_one_after_the_other() -> None:
    dialogue = training(plan=SELDOM, jobs="abc")
    for job in "ab":
        dialogue.step(1, 0, job=job)
    assert dialogue.give(ev.Stopping()) == [
        "c: send checkpoint 0.0",
        "c: drop job",
        "snapshot 1.1",
        "send checkpoint 0.0",
        "drop job",
    ], "job c has no newer weights"
    assert dialogue.saved(1, 1) == [
        "send checkpoint 1.1",
        "b: snapshot 1.1",
        "b: send checkpoint 0.0",
        "b: drop job",
    ]
    assert not dialogue.core.is_idle
    assert dialogue.saved(1, 1, job="b") == ["b: send checkpoint 1.1"]
    assert dialogue.core.is_idle


# ---- an error in one job ----


def fail_in(job: str, method: Callable[..., None]) -> Callable[..., None]:
    """Return a method of a job's core that raises in one job, after it has done its work."""

    def failing(self: JobCore, *arguments: Any) -> None:
        method(self, *arguments)
        if self.job == job:
            raise IndexError("list index out of range")

    return failing


def test_an_error_in_one_job_leaves_the_others_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    dialogue = training(plan=EVERY_STEP, jobs="ab")
    dialogue.step(1, 0, job="b")
    dialogue.chunk(0, step=1, job="b")
    dialogue.chunk(0)
    before = dialogue.open("b")
    with monkeypatch.context() as patch:
        patch.setattr(JobCore, "take_chunks", fail_in("a", JobCore.take_chunks))
        broke, dropped, failure = dialogue.chunk(1)
    assert (broke, dropped) == ("broke: list index out of range", "drop job"), (
        "nothing of the input's effects"
    )
    assert failure.startswith("send failure: the optimizer failed while it ran this job: internal error")
    assert dialogue.open("b") == before
    assert dialogue.chunk(1, step=1, job="b") == ["b: stage #1"]
    assert dialogue.saved(1, 1, job="b") == ["b: send checkpoint 1.1"]
    assert dialogue.open() == ["load a"], "it may begin again"
    assert dialogue.loaded(generation=1, step=0)[0] == "save generation 2"


def test_an_error_while_all_jobs_are_told_something_costs_one_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialogue = training(jobs="abc")
    with monkeypatch.context() as patch:
        patch.setattr(JobCore, "connect", fail_in("b", JobCore.connect))
        effects = dialogue.connect(2)
    assert [each for each in effects if not each.startswith("b: ")] == [
        "save epoch 2",
        "send training 1.0, missing #0 #1",
        "send checkpoint 0.0",
        "c: send training 1.0, missing #0 #1",
        "c: send checkpoint 0.0",
    ]
    assert [each for each in effects if each.startswith("b: ")][:2] == [
        "b: broke: list index out of range",
        "b: drop job",
    ]
    assert list(dialogue.core.jobs) == ["a", "c"]


def test_the_checkpoint_of_a_job_that_broke_still_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    dialogue = training(plan=EVERY_STEP, jobs="ab")
    dialogue.step(1, 0)
    dialogue.step(1, 0, job="b")
    with monkeypatch.context() as patch:
        patch.setattr(JobCore, "take_chunks", fail_in("a", JobCore.take_chunks))
        dialogue.chunk(0, step=1)
    assert dialogue.saved(1, 1) == ["send checkpoint 1.1", "b: snapshot 1.1"]


def test_an_error_outside_of_any_job_ends_them_all_and_the_core_goes_on() -> None:
    dialogue = training(jobs="ab")
    nothing: Any = None
    effects = dialogue.give(ev.Connected(nothing))
    assert sum("broke: " in each for each in effects) == 2
    assert not dialogue.core.jobs and dialogue.core.epoch == 1
    assert dialogue.open() == ["load a"]


# ---- side by side ----

STEPS = 12
SHARED = ev.Snapshot | ev.RetryLater
CHECKPOINTS = pb.CheckpointWritten | pb.CheckpointMissed


class Life:
    """What happens to one job: a worker's chunks, and planes and a disk that answer what the core asks for.

    Args:
        job: job id.
        seed: what of its norms are not finite, and when its steps start over.

    Attributes:
        effects: its effects, without those on checkpoints, which wait for those of other jobs.
        inputs: what happens to it next, in sequence.
    """

    def __init__(self, job: str, seed: int) -> None:
        self.job = job
        self.effects: list[ev.Effect] = []
        self.inputs: deque[ev.Input] = deque([ev.Ordered(1, pb.Open(job=job))])
        self._random = random.Random(seed)
        self._generation = 1

    def take(self, effect: ev.Effect) -> None:
        """Take an effect of the core."""
        is_shared = isinstance(effect, SHARED) or (
            isinstance(effect, ev.ToAggregator) and isinstance(effect.body, CHECKPOINTS)
        )
        if not is_shared:
            self.effects.append(effect)
        match effect:
            case ev.Load():
                plan = JobPlan(steps=STEPS, micro_batches=2, checkpoint_every=2)
                written = Dialogue.written(0, 0, self.job)
                loaded = ev.Loaded(self.job, plan, 0, "layout", 2 * CHUNK_ELEMENTS, written)
                self.inputs += [loaded, ev.Ordered(1, pb.SendWeights(job=self.job, generation=1))]
            case ev.ToAggregator(body=pb.OptimizerStatus() as status):
                self._generation = status.generation
                self._compute(status.step)
            case ev.ToAggregator(body=pb.Commit() as commit):
                self._compute(commit.step + 1)
            case plane.StageChunks():
                norm = self._random.choice([1.0, 2.0, 3.0, float("inf")])
                staged = [plane.StagedChunk(chunk=each, block_sums=[norm]) for each in effect.chunks]
                self._report(plane.StagedChunks(job=self.job, chunks=staged))
            case plane.UpdatePart():
                for chunks in (1, 2):
                    self._report(plane.UpdatedPart(job=self.job, step=effect.step, chunks=chunks))
            case ev.Snapshot():
                written = Dialogue.written(effect.generation, effect.step, self.job)
                self.inputs.append(ev.Saved(written))

    def _report(self, body: plane.StagedChunks | plane.UpdatedPart) -> None:
        self.inputs.append(ev.FromPlane(Stripe(), body))

    def _compute(self, step: int) -> None:
        """Send the chunks of a step's sum, or all but one of them before the step starts over."""
        if step == STEPS:
            self.inputs.append(ev.Ordered(1, pb.Close(job=self.job)))
            return
        starts_over = self._random.random() < 0.2
        for chunk in (0,) if starts_over else (0, 1):
            header = ChunkHeader(
                job=self.job,
                epoch=1,
                generation=self._generation,
                step=step,
                kind=GRADIENT,
                index=chunk,
                findings=Findings(count=1),
            )
            self.inputs.append(ev.ChunksArrived(header, [chunk]))
        if starts_over:
            self.inputs.append(ev.Ordered(1, pb.StartOver(job=self.job, generation=self._generation)))


def live(lives: list[Life], seed: int) -> None:
    """Let things happen to jobs in a random order; within a job they keep theirs."""
    order = random.Random(seed)
    core = OptimizerCore(name="opt")
    core.handle(
        ev.Connected(pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", name="agg", epoch_seen=1))
    )
    of = {each.job: each for each in lives}
    copies = 0
    while waiting := [each for each in lives if each.inputs]:
        event = order.choice(waiting).inputs.popleft()
        copies -= isinstance(event, ev.Saved)
        for effect in core.handle(event):
            copies += isinstance(effect, ev.Snapshot)
            of[ev.job_of(effect)].take(effect)
        assert copies <= 1, "at most one copy of tensors is on the host"
    assert core.is_idle


@pytest.mark.parametrize("seed", range(20))
def test_a_jobs_steps_do_not_depend_on_what_runs_beside_it(seed: int) -> None:
    together = [Life(job, 1000 * seed + number) for number, job in enumerate("abcd")]
    live(together, seed)
    for number, job in enumerate("abcd"):
        alone = Life(job, 1000 * seed + number)
        live([alone], 7)
        assert alone.effects == together[number].effects
        commits = [each for each in alone.effects if isinstance(each, plane.UpdatePart)]
        assert len(commits) == STEPS
