"""Dialogues with the optimizer's core. Each line is one effect, in order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from optimizer import events as ev
from optimizer.core import OptimizerCore
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, NonFinite
from services.plan import PROTOCOL_VERSION, JobPlan
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.ranges import from_ranges

PLAN = JobPlan(steps=4, micro_batches=2, checkpoint_every=2)
STATES = {pb.Standing.EMPTY: "empty", pb.Standing.RECEIVING: "receiving", pb.Standing.TRAINING: "training"}


def line(effect: ev.Effect) -> str:
    """An effect on one line."""
    match effect:
        case ev.Say(pb.Standing() as body):
            missing = "".join(f" #{chunk}" for chunk in from_ranges(body.missing, 99))
            return f"say {STATES[body.state]} {body.generation}.{body.step}, missing{missing or ' nothing'}"
        case ev.Say(pb.Commit() as body):
            found = "".join(f", {each.worker} {each.micro_batch}" for each in body.non_finite)
            return f"say commit {body.generation}.{body.step}{'' if body.applied else ' skipped'}{found}"
        case ev.Say(pb.CheckpointWritten() as body):
            return f"say checkpoint {body.generation}.{body.step}"
        case ev.Say(pb.CheckpointMissed() as body):
            return f"say no checkpoint {body.generation}.{body.step}: {body.reason}"
        case ev.Say(pb.Unable() as body):
            return f"say unable: {body.reason}"
        case ev.Refuse():
            return f"refuse: {effect.reason}"
        case ev.SaveGeneration():
            return f"save generation {effect.generation}"
        case ev.Load() | ev.Allocate():
            return f"{type(effect).__name__.lower()} {effect.job}"
        case ev.Stage() | ev.StoreInitial():
            return f"{'stage' if isinstance(effect, ev.Stage) else 'store'} #{effect.chunk}"
        case ev.Measure():
            return f"measure step {effect.step}"
        case ev.Update():
            return f"update step {effect.step}{'' if effect.applied else ' skipped'}"
        case ev.Snapshot():
            return f"snapshot {effect.generation}.{effect.step}"
    return "drop job"


class Dialogue:
    """An optimizer's core of a job of two chunks, and what was said to it."""

    def __init__(self, epoch: int = 1) -> None:
        self.core = OptimizerCore(name="opt")
        self.elements = 2 * CHUNK_ELEMENTS
        self.epoch = epoch
        self.now_seconds = 1000.0
        assert self.connect(epoch) == []

    def give(self, event: ev.Input) -> list[str]:
        """Any input."""
        return [line(effect) for effect in self.core.handle(event)]

    def connect(self, epoch: int, **words: Any) -> list[str]:
        """An aggregator connects."""
        hello = {
            "protocol": PROTOCOL_VERSION,
            "role": "aggregator",
            "name": "agg",
            "epoch_seen": epoch,
            **words,
        }
        return self.give(ev.Connected(pb.Hello(**hello)))

    def order(self, body: Any, epoch: int | None = None) -> list[str]:
        """An order of the aggregator."""
        return self.give(ev.Ordered(self.core.epoch if epoch is None else epoch, body))

    def open(self, job: str = "a", generation: int = 0) -> list[str]:
        """The aggregator opens a job."""
        return self.order(pb.Open(job=job, spec_json="{}", generation=generation))

    def loaded(
        self, job: str = "a", generation: int = 0, step: int | None = None, plan: JobPlan = PLAN
    ) -> list[str]:
        """A job is found on disk, with a checkpoint of a step or without."""
        if step is None:
            return self.give(ev.Loaded(job, plan, generation))
        written = self.written(generation, step, job)
        return self.give(ev.Loaded(job, plan, generation, "layout", self.elements, written))

    @staticmethod
    def written(generation: int, step: int, job: str = "a") -> pb.CheckpointWritten:
        """What is told of a checkpoint."""
        return pb.CheckpointWritten(job=job, generation=generation, step=step, path=f"step-{step}")

    def chunk(
        self, index: int, generation: int = 1, step: int = 0, *, kind: Any = GRADIENT, **fields: Any
    ) -> list[str]:
        """A chunk of a step's sum."""
        values = {"job": "a", "epoch": self.core.epoch, "index": index, **fields}
        return self.give(ev.ChunkArrived(ChunkHeader(generation=generation, step=step, kind=kind, **values)))

    def initial(self, index: int) -> list[str]:
        """A chunk of initial weights."""
        return self.chunk(index, 0, 0, kind=INITIAL_WEIGHTS)

    def measured(self, step: int, finite: bool = True) -> list[str]:
        """The staged gradient is measured."""
        return self.give(ev.Measured("a", step, 2.0, finite, 0.1, self.now_seconds))

    def updated(self, step: int, chunks: Iterable[int] = (0, 1)) -> list[str]:
        """Chunks are updated."""
        return [each for chunk in chunks for each in self.give(ev.Updated("a", step, chunk))]

    def step(self, generation: int, step: int, seconds: float = 0.0) -> list[str]:
        """A whole step, which takes so long; what its last chunk brings."""
        self.now_seconds += seconds
        self.chunk(0, generation, step)
        self.chunk(1, generation, step)
        self.measured(step)
        return self.updated(step)

    def saved(self, generation: int, step: int) -> list[str]:
        """A snapshot is on the disk."""
        return self.give(ev.Saved(self.written(generation, step)))

    def not_saved(self, generation: int, step: int, reason: str = "disk full") -> list[str]:
        """A snapshot could not be written."""
        return self.give(ev.NotSaved("a", generation, step, reason))

    def stream(self) -> list[str]:
        """The weights that may be sent now."""
        lines = []
        while (header := self.core.next_weights()) is not None:
            lines.append(f"{header.generation}.{header.step} #{header.index}")
        return lines

    def send_weights(self, generation: int, step: int) -> list[str]:
        """The aggregator asks for weights."""
        return self.order(pb.SendWeights(job="a", generation=generation, step=step))


def training(generation: int = 0, step: int = 0, plan: JobPlan = PLAN) -> Dialogue:
    """An optimizer that continues a job, under the next generation."""
    talk = Dialogue()
    talk.open()
    talk.loaded(generation=generation, step=step, plan=plan)
    talk.send_weights(generation + 1, step)
    talk.stream()
    return talk


# ---- who is obeyed ----


def test_an_older_aggregator_is_refused_by_name() -> None:
    talk = Dialogue(epoch=3)
    (text,) = talk.connect(2)
    assert text == (
        "refuse: aggregator agg is of epoch 2, this optimizer obeys epoch 3: "
        "a newer aggregator has taken over; stop this one"
    )
    assert talk.connect(3) == [], "the same one, after its link broke"
    assert talk.connect(4) == []
    assert talk.order(pb.Open(job="a"), epoch=3) == [], "a word of the former one"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"protocol": 7}, "aggregator agg speaks protocol 7, this optimizer 1; install the same version"),
        ({"role": "worker"}, "agg says that it is a 'worker'; only aggregators attend an optimizer"),
    ],
)
def test_others_are_refused_by_name(words: dict[str, Any], reason: str) -> None:
    (text,) = Dialogue().connect(1, **words)
    assert text.startswith(f"refuse: {reason}")


# ---- opening a job ----


def test_a_job_from_nothing_to_training() -> None:
    talk = Dialogue()
    assert talk.open() == ["load a"]
    assert talk.open() == [], "asked again while it loads"
    assert talk.loaded() == ["save generation 1", "say empty 1.0, missing nothing"]
    order = pb.Initialise(job="a", layout_json="layout", files={"config.json": b"{}"})
    assert talk.order(order) == ["allocate a"]
    assert talk.order(order) == [], "asked again while room is made"
    assert talk.initial(0) == [], "no room yet"
    assert talk.give(ev.Allocated("a", "layout", talk.elements)) == ["say receiving 1.0, missing #0 #1"]
    assert talk.initial(0) == ["store #0"]
    assert talk.initial(0) == [], "repeated"
    assert talk.order(order) == ["say receiving 1.0, missing #1"], "another worker goes on"
    assert talk.initial(1) == ["store #1", "snapshot 1.0"]
    assert talk.order(order) == ["say receiving 1.0, missing nothing"]
    assert talk.initial(1) == []
    assert talk.give(ev.Saved(talk.written(1, 0))) == [
        "say training 1.0, missing #0 #1",
        "say checkpoint 1.0",
    ]
    assert talk.order(order) == [], "there are weights by now"


def test_another_layout_takes_the_place_of_one_that_was_never_complete() -> None:
    talk = Dialogue()
    talk.open()
    talk.loaded()
    talk.order(pb.Initialise(job="a", layout_json="one"))
    talk.give(ev.Allocated("a", "one", talk.elements))
    talk.initial(0)
    assert talk.order(pb.Initialise(job="a", layout_json="two")) == ["allocate a"]
    assert talk.initial(1) == [], "for the layout that is given up"
    assert talk.give(ev.Allocated("a", "one", talk.elements)) == []
    assert talk.give(ev.Allocated("a", "two", 1)) == ["say receiving 1.0, missing #0"]


def test_a_job_on_disk_continues_under_a_new_generation() -> None:
    talk = Dialogue()
    talk.open(generation=6)
    assert talk.loaded(generation=4, step=2) == [
        "save generation 7",
        "say training 7.2, missing #0 #1",
        "say checkpoint 4.2",
    ], "above what is on disk, and above what the aggregator has seen"


def test_opening_a_job_that_is_open_tells_where_it_stands() -> None:
    talk = training(step=2)
    talk.chunk(1, 1, 2)
    talk.connect(2)
    assert talk.open() == ["say training 1.2, missing #0", "say checkpoint 0.2"]


def test_another_job_takes_the_place_of_the_open_one() -> None:
    talk = training()
    assert talk.open("b") == ["drop job", "load b"]
    assert talk.chunk(0) == []
    assert talk.order(pb.Close(job="b")) == []
    assert talk.loaded("b") == [], "closed before it was loaded"
    assert talk.open("b") == ["load b"]


def test_a_job_that_cannot_be_loaded() -> None:
    talk = Dialogue()
    talk.open()
    assert talk.give(ev.Broke("a", "checkpoint: flipped byte")) == ["say unable: checkpoint: flipped byte"]
    assert talk.open() == ["load a"], "it can be tried again"


# ---- a step ----


def test_a_step() -> None:
    talk = training()
    assert talk.chunk(1) == ["stage #1"]
    assert talk.chunk(0) == ["stage #0", "measure step 0"]
    assert talk.measured(0) == ["say commit 1.0", "update step 0"]
    assert talk.stream() == []
    assert talk.updated(0, [0]) == []
    assert talk.stream() == ["1.1 #0"], "each chunk as soon as it is updated"
    assert talk.updated(0, [1]) == []
    assert talk.stream() == ["1.1 #1"]


def test_stale_and_repeated_chunks_change_nothing() -> None:
    talk = training(step=2)
    assert talk.chunk(0, 1, 2) == ["stage #0"]
    for what in (
        talk.chunk(0, 1, 2),  # repeated
        talk.chunk(1, 1, 1),  # a step before
        talk.chunk(1, 1, 3),  # a step to come
        talk.chunk(1, 0, 2),  # another generation
        talk.chunk(1, 1, 2, epoch=9),  # another aggregator
        talk.chunk(1, 1, 2, job="b"),
        talk.chunk(7, 1, 2),  # no such chunk
        talk.initial(1),
    ):
        assert what == []
    assert talk.chunk(1, 1, 2) == ["stage #1", "measure step 2"]
    assert talk.chunk(1, 1, 2) == [], "being decided"


def test_a_step_happens_once() -> None:
    talk = training()
    talk.chunk(0)
    talk.chunk(1)
    assert talk.measured(0) == ["say commit 1.0", "update step 0"]
    assert talk.measured(0) == []
    talk.updated(0)
    assert talk.chunk(0) == [] and talk.chunk(1) == []


def test_a_gradient_that_is_not_finite_is_a_step_that_changes_nothing() -> None:
    talk = training()
    talk.chunk(0)
    talk.chunk(1)
    assert talk.measured(0, finite=False) == ["say commit 1.0 skipped", "update step 0 skipped"]


FOUND = NonFinite(micro_batch=1, parameter="w", worker="a")


def test_a_commit_says_whose_gradients_were_not_finite_though_the_aggregator_is_another() -> None:
    talk = training()
    talk.chunk(1)
    talk.chunk(0, non_finite=[FOUND])
    talk.give(ev.Disconnected())
    talk.connect(2)
    assert talk.measured(0, finite=False) == ["say commit 1.0 skipped, a 1", "update step 0 skipped"]
    talk.updated(0)
    talk.chunk(1, 1, 1)
    talk.chunk(0, 1, 1)
    assert talk.measured(1, finite=False) == ["say commit 1.1 skipped", "update step 1 skipped"]


def test_a_job_that_is_to_stop_is_not_committed() -> None:
    talk = Dialogue()
    talk.open()
    plan = replace(PLAN, on_non_finite="stop")
    talk.give(ev.Loaded("a", plan, 0, "layout", talk.elements, talk.written(1, 0)))
    talk.chunk(1)
    talk.chunk(0, non_finite=[FOUND])
    said = (
        "say unable: step 1: the gradient is not finite: worker a, micro-batch 1, parameter w "
        "(on_non_finite: stop)"
    )
    assert talk.measured(0, finite=False) == [said]
    talk.give(ev.Disconnected())
    talk.connect(2)
    assert said in talk.open(), "to whoever comes"


def test_checkpoints_are_taken_after_a_steps_last_chunk() -> None:
    talk = training(step=1)
    talk.chunk(0, 1, 1)
    talk.chunk(1, 1, 1)
    talk.measured(1)
    assert talk.updated(1, [0]) == []
    assert talk.updated(1, [0]) == [], "repeated"
    assert talk.updated(1, [1]) == ["snapshot 1.2"]
    assert talk.give(ev.Saved(talk.written(1, 2))) == ["say checkpoint 1.2"]


EVERY_STEP = JobPlan(steps=9, micro_batches=2, checkpoint_every=1)


def test_no_step_waits_for_a_slow_disk() -> None:
    talk = training(plan=EVERY_STEP)
    assert talk.step(1, 0) == ["snapshot 1.1"]
    late = "that of step 1 is still being written; one follows as soon as the disk is free"
    assert talk.step(1, 1) == [f"say no checkpoint 1.2: {late}"]
    assert talk.step(1, 2) == [f"say no checkpoint 1.3: {late}"]
    assert talk.saved(1, 1) == ["say checkpoint 1.1", "snapshot 1.3"], "at once: the weights rest"
    assert talk.step(1, 3) == [f"say no checkpoint 1.4: {late.replace('step 1', 'step 3')}"]
    talk.chunk(0, 1, 4)
    talk.chunk(1, 1, 4)
    talk.measured(4)
    assert talk.saved(1, 3) == ["say checkpoint 1.3"], "an update is under way"
    assert talk.updated(4, [0]) == []
    assert talk.updated(4, [1]) == ["snapshot 1.5"]


BY_TIME = JobPlan(steps=99, micro_batches=2, checkpoint_every=0, checkpoint_seconds=60.0)


def test_checkpoints_by_the_clock() -> None:
    talk = training(plan=BY_TIME)
    assert talk.step(1, 0, 500.0) == [], "from the first step on"
    assert talk.step(1, 1, 59.0) == []
    assert talk.step(1, 2, 1.0) == ["snapshot 1.3"]
    assert talk.step(1, 3, 59.0) == [], "from that one on"
    (late,) = talk.step(1, 4, 1.0)
    assert late.startswith("say no checkpoint 1.5: that of step 3 is still being written")
    assert talk.not_saved(1, 3) == ["say no checkpoint 1.3: disk full", "snapshot 1.5"]
    assert talk.not_saved(1, 5) == ["say no checkpoint 1.5: disk full"]
    assert talk.step(1, 5, 30.0) == [], "not before the next is due"
    assert talk.step(1, 6, 30.0) == ["snapshot 1.7"]


def test_checkpoints_by_steps_and_by_the_clock() -> None:
    plan = JobPlan(steps=99, micro_batches=2, checkpoint_every=2, checkpoint_seconds=60.0)
    talk = training(plan=plan)
    talk.step(1, 0)
    assert talk.step(1, 1, 40.0) == ["snapshot 1.2"]
    talk.saved(1, 2)
    assert talk.step(1, 2, 40.0) == [], "from the newest one on, whatever it was due by"
    assert talk.step(1, 3, 40.0) == ["snapshot 1.4"]
    talk.saved(1, 4)
    assert talk.step(1, 4, 60.0) == ["snapshot 1.5"]


def test_the_clock_of_a_new_job_begins_with_its_first_step() -> None:
    talk = Dialogue()
    talk.open()
    talk.loaded(plan=BY_TIME)
    talk.order(pb.Initialise(job="a", layout_json="layout"))
    talk.give(ev.Allocated("a", "layout", talk.elements))
    talk.initial(0)
    talk.initial(1)
    talk.saved(1, 0)
    assert talk.step(1, 0, 500.0) == []
    assert talk.step(1, 1, 60.0) == ["snapshot 1.2"]


def test_the_last_checkpoint_waits_for_the_one_before() -> None:
    talk = training(step=1)
    assert talk.step(1, 1) == ["snapshot 1.2"]
    assert talk.step(1, 2) == [], "none is due"
    (late,) = talk.step(1, 3)
    assert late.startswith("say no checkpoint 1.4: that of step 2 is still being written")
    assert talk.saved(1, 2) == ["say checkpoint 1.2", "snapshot 1.4"]


def test_the_last_checkpoint_is_made_even_if_the_one_before_fails() -> None:
    talk = training(step=1)
    talk.step(1, 1)
    talk.step(1, 2)
    talk.step(1, 3)
    assert talk.not_saved(1, 2) == ["say no checkpoint 1.2: disk full", "snapshot 1.4"]
    assert talk.not_saved(1, 4) == ["snapshot 1.4"]
    assert talk.saved(1, 4) == ["say checkpoint 1.4"]


def test_a_job_goes_on_without_a_checkpoint_and_tries_when_the_next_is_due() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=2))
    talk.step(1, 0)
    assert talk.step(1, 1) == ["snapshot 1.2"]
    assert talk.not_saved(1, 2) == ["say no checkpoint 1.2: disk full"]
    assert talk.step(1, 2) == []
    assert talk.step(1, 3) == ["snapshot 1.4"]
    assert talk.open()[-1] == "say checkpoint 0.0", "the last good one is what it was"


def test_a_job_that_wants_its_checkpoints_stops_without_one() -> None:
    talk = training(plan=JobPlan(steps=9, micro_batches=2, checkpoint_every=1, stops_without_checkpoint=True))
    talk.step(1, 0)
    assert talk.not_saved(1, 1) == ["say unable: disk full (checkpoint.on_error: stop)"]


def test_the_first_and_the_last_checkpoint_are_tried_twice_then_the_job_fails() -> None:
    failed = ["say unable: disk full (tried twice; a job needs its first and last one)"]
    talk = training(step=3)
    assert talk.step(1, 3) == ["snapshot 1.4"]
    assert talk.not_saved(1, 4) == ["snapshot 1.4"]
    assert talk.not_saved(1, 4) == failed
    talk = Dialogue()
    talk.open()
    talk.loaded()
    talk.order(pb.Initialise(job="a", layout_json="layout"))
    talk.give(ev.Allocated("a", "layout", talk.elements))
    talk.initial(0)
    assert talk.initial(1) == ["store #1", "snapshot 1.0"]
    assert talk.not_saved(1, 0) == ["snapshot 1.0"]
    assert talk.not_saved(1, 0) == failed


def test_what_a_former_generation_saves_late_is_not_taken_for_the_newest() -> None:
    talk = training(plan=EVERY_STEP)
    talk.step(1, 0)
    talk.give(ev.TensorsLost())
    talk.open(generation=1)
    talk.loaded(generation=1, step=0, plan=EVERY_STEP)
    (late,) = talk.step(2, 0)
    assert late.startswith("say no checkpoint 2.1: that of step 1 is still being written"), (
        "one copy at a time"
    )
    assert talk.saved(1, 1) == ["snapshot 2.1"]
    assert talk.open()[-1] == "say checkpoint 1.0"
    talk.step(2, 1)
    assert talk.not_saved(1, 1) == [], "another one is being written"
    assert talk.saved(2, 1) == ["say checkpoint 2.1", "snapshot 2.2"]


def test_a_checkpoint_that_could_not_be_written_is_told_to_whoever_comes() -> None:
    talk = training()
    talk.give(ev.Disconnected())
    assert talk.give(ev.Broke("a", "disk full")) == []
    talk.connect(2)
    assert talk.open()[-1] == "say unable: disk full"


# ---- weights ----


def test_weights_are_streamed_to_those_who_asked_on_this_link() -> None:
    talk = training()
    talk.chunk(0)
    talk.chunk(1)
    talk.connect(2)
    assert talk.measured(0) == ["say commit 1.0", "update step 0"]
    talk.updated(0)
    assert talk.stream() == [], "this aggregator may not know where the job stands"
    assert talk.send_weights(1, 0) == []
    assert talk.stream() == ["1.1 #0", "1.1 #1"], "what has come of the version that it asked for"


def test_who_has_a_version_asks_for_the_next() -> None:
    talk = training()
    talk.connect(1)
    talk.send_weights(1, 1)
    assert talk.stream() == []
    talk.chunk(0)
    talk.chunk(1)
    talk.measured(0)
    talk.updated(0)
    assert talk.stream() == ["1.1 #0", "1.1 #1"]


def test_weights_of_another_generation_are_not_sent() -> None:
    talk = training()
    talk.connect(1)
    talk.send_weights(7, 0)
    assert talk.stream() == []


def test_weights_are_sent_again_when_asked_again() -> None:
    talk = training()
    talk.send_weights(1, 0)
    assert talk.stream() == ["1.0 #0", "1.0 #1"]


def test_nothing_is_streamed_while_the_link_is_down() -> None:
    talk = training()
    talk.send_weights(1, 0)
    talk.give(ev.Disconnected())
    assert talk.stream() == []
    talk.chunk(0)
    assert talk.chunk(1) == ["stage #1", "measure step 0"], "what came before counts"
    assert talk.measured(0) == ["update step 0"], "nobody to tell"


# ---- tensors that live elsewhere ----


def test_lost_tensors_are_loaded_again_under_a_new_generation() -> None:
    talk = training()
    talk.chunk(0)
    assert talk.give(ev.TensorsLost()) == ["drop job"]
    assert talk.chunk(1) == [], "what comes for the lost sum is of no use"
    assert talk.open(generation=1) == ["load a"]
    assert talk.loaded(generation=1, step=0) == [
        "save generation 2",
        "say training 2.0, missing #0 #1",
        "say checkpoint 1.0",
    ]


def test_tensors_lost_while_a_job_is_loaded() -> None:
    talk = Dialogue()
    talk.open()
    assert talk.core.is_loading("a")
    assert talk.give(ev.TensorsLost()) == []
    assert not talk.core.is_loading("a")
    assert talk.loaded() == [], "of the load that was given up"
    assert talk.open() == ["load a"]
