"""Dialogues on a step whose sum is void: it is made again, under the next generation, from the same weights."""

from __future__ import annotations

from optimizer.core import events as ev
from protos import cluster_pb2 as pb
from services.protocol.versions import LAST_GENERATION
from tests.support.dialogues.optimizer import Dialogue, training


def start_over(talk: Dialogue, generation: int = 1, job: str = "a") -> list[str]:
    return talk.order(pb.StartOver(job=job, generation=generation))


def test_what_is_staged_is_forgotten_and_staged_again() -> None:
    talk = training()
    assert talk.chunk(1) == ["stage #1"]
    assert start_over(talk) == ["save generation 2", "unstage", "say training 2.0, missing #0 #1"]
    assert talk.chunk(0) == [], "of the generation before"
    assert talk.send_weights(2, 0) == []
    assert talk.stream() == ["2.0 #0", "2.0 #1"], "the same weights, of a later version"
    assert talk.chunk(1, 2) == ["stage #1"]
    assert talk.chunk(0, 2) == ["stage #0", "measure step 0"]
    assert talk.measured(0) == ["say commit 2.0", "update step 0"]


def test_a_repeated_order_changes_nothing() -> None:
    talk = training()
    start_over(talk)
    talk.chunk(1, 2)
    assert start_over(talk) == ["say training 2.0, missing #0"]


def test_a_sum_that_is_being_measured_is_not_committed() -> None:
    talk = training()
    talk.chunk(0)
    talk.chunk(1)
    assert start_over(talk) == [], "its measure is on the way"
    assert talk.measured(0) == ["save generation 2", "unstage", "say training 2.0, missing #0 #1"]
    assert talk.measured(0) == []


def test_a_step_that_is_decided_already_is_not_undone() -> None:
    talk = training()
    talk.step(1, 0)
    assert start_over(talk) == ["save generation 2", "unstage", "say training 2.1, missing #0 #1"]


def test_a_checkpoint_on_its_way_to_the_disk_is_told_of() -> None:
    talk = training()
    talk.step(1, 0)
    assert talk.step(1, 1) == ["snapshot 1.2"]
    start_over(talk)
    assert talk.saved(1, 2) == ["say checkpoint 1.2"]


def test_a_checkpoint_of_a_life_before_is_not() -> None:
    talk = training(generation=4, step=1)
    assert talk.saved(4, 1) == []


def test_another_jobs_order_and_one_before_there_are_weights_are_not_heeded() -> None:
    talk = training()
    assert start_over(talk, job="b") == []
    fresh = Dialogue()
    fresh.open()
    fresh.loaded()
    assert start_over(fresh) == []


def test_there_is_a_last_generation() -> None:
    talk = training(generation=LAST_GENERATION - 1)
    (line,) = start_over(talk, LAST_GENERATION)
    assert line.startswith(f"say unable: generation {LAST_GENERATION} is the last that there is")


# ---- back to a checkpoint ----


def opened(talk: Dialogue, *void: tuple[int, int]) -> list[str]:
    """The job is opened by an aggregator that knows of void checkpoints: (generation, step)."""
    voids = [pb.Void(generation=generation, step=step) for generation, step in void]
    return talk.order(pb.Open(job="a", spec_json="{}", generation=1, void=voids))


def test_a_job_whose_generation_is_void_is_taken_up_anew() -> None:
    talk = training(step=2)
    talk.step(1, 2)
    assert opened(talk, (1, 1)) == ["drop job", "load a"]
    assert talk.measured(3) == talk.updated(3) == [], "of what was dropped"
    assert talk.loaded(generation=1, step=0) == [
        "save generation 2",
        "say training 2.0, missing #0 #1",
        "say checkpoint 1.0",
    ]
    assert opened(talk, (1, 1)) == ["say training 2.0, missing #0 #1", "say checkpoint 1.0"], (
        "it has gone back"
    )


def test_what_is_void_is_told_to_whoever_looks_on_the_disk() -> None:
    talk = training()
    void = pb.Void(generation=1, step=1)
    order = pb.Open(job="a", spec_json="{}", void=[void])
    loads = [each for each in talk.core.handle(ev.Ordered(1, order)) if isinstance(each, ev.Load)]
    assert loads == [ev.Load("a", "{}", (void,))]


def test_a_checkpoint_that_became_void_while_it_was_looked_up_is_not_taken() -> None:
    talk = Dialogue()
    talk.open()
    assert opened(talk, (1, 1)) == [], "it is being looked up"
    assert talk.loaded(generation=1, step=2) == ["load a"]
    assert talk.loaded(generation=1, step=1)[0] == "save generation 2"


def test_a_checkpoint_of_a_later_generation_counts() -> None:
    talk = Dialogue()
    opened(talk, (1, 1))
    assert talk.loaded(generation=2, step=2)[0] == "save generation 3"
