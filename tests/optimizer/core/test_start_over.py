"""A step starts over: its sum is void and computed again, under the next generation, from the same weights."""

from __future__ import annotations

from optimizer.core import events as ev
from protos import cluster_pb2 as pb
from services.protocol.versions import LAST_GENERATION
from tests.support.dialogues.optimizer import Dialogue, training


def start_over(dialogue: Dialogue, generation: int = 1, job: str = "a") -> list[str]:
    return dialogue.order(pb.StartOver(job=job, generation=generation))


def test_staged_chunks_are_discarded_and_staged_again() -> None:
    dialogue = training()
    assert dialogue.chunk(1) == ["stage #1"]
    assert start_over(dialogue) == ["save generation 2", "send training 2.0, missing #0 #1"]
    assert dialogue.chunk(0) == [], "a chunk of the former generation"
    assert dialogue.send_weights(2, 0) == ["make 2.0", "weights 2.0"], "the same weights, of a later version"
    assert dialogue.chunk(1, 2) == ["stage #1"]
    assert dialogue.chunk(0, 2) == ["stage #0"]
    assert dialogue.staged(chunks=[1]) == [], "of the former sum"
    assert dialogue.staged() == ["send commit 2.0", "update step 0", "weights 2.1"]


def test_a_repeated_order_changes_nothing() -> None:
    dialogue = training()
    start_over(dialogue)
    dialogue.chunk(1, 2)
    assert start_over(dialogue) == ["send training 2.0, missing #0"]


def test_a_sum_that_is_being_staged_is_not_committed() -> None:
    dialogue = training()
    dialogue.chunk(0)
    dialogue.chunk(1)
    dialogue.staged(chunks=[0])
    assert start_over(dialogue) == ["save generation 2", "send training 2.0, missing #0 #1"]
    dialogue.chunk(0, 2)
    dialogue.chunk(1, 2)
    dialogue.staged(chunks=[0])
    assert dialogue.staged(chunks=[1]) == [], "a report on the former sum"
    assert dialogue.staged(chunks=[1]) == ["send commit 2.0", "update step 0"]


def test_a_committed_step_is_not_undone() -> None:
    dialogue = training()
    dialogue.step(1, 0)
    assert start_over(dialogue) == ["save generation 2", "send training 2.1, missing #0 #1"]


def test_a_checkpoint_that_is_being_written_is_still_reported() -> None:
    dialogue = training()
    dialogue.step(1, 0)
    assert dialogue.step(1, 1) == ["snapshot 1.2"]
    start_over(dialogue)
    assert dialogue.saved(1, 2) == ["send checkpoint 1.2"]


def test_a_checkpoint_from_before_the_job_was_opened_is_not_reported() -> None:
    dialogue = training(generation=4, step=1)
    assert dialogue.saved(4, 1) == []


def test_an_order_for_another_job_or_before_training_is_ignored() -> None:
    dialogue = training()
    assert start_over(dialogue, job="b") == []
    fresh = Dialogue()
    fresh.open()
    fresh.loaded()
    assert start_over(fresh) == []


def test_a_step_that_needs_a_generation_after_the_last_fails_the_job() -> None:
    dialogue = training(generation=LAST_GENERATION - 1)
    (line,) = start_over(dialogue, LAST_GENERATION)
    assert line.startswith("send failure: ") and str(LAST_GENERATION) in line


# ---- back to a checkpoint ----


def open_without(dialogue: Dialogue, *void: tuple[int, int]) -> list[str]:
    """Order the job to be opened without these void checkpoints: (generation, step)."""
    voids = [pb.Void(generation=generation, step=step) for generation, step in void]
    return dialogue.order(pb.Open(job="a", generation=1, void=voids))


def test_a_job_whose_generation_is_void_is_loaded_again() -> None:
    dialogue = training(step=2)
    dialogue.step(1, 2)
    assert open_without(dialogue, (1, 1)) == ["drop job", "load a"]
    assert dialogue.staged() == dialogue.updated(3) == [], "answers about the dropped job"
    assert dialogue.loaded(generation=1, step=0) == [
        "save generation 2",
        "send training 2.0, missing #0 #1",
        "send checkpoint 1.0",
    ]
    assert open_without(dialogue, (1, 1)) == ["send training 2.0, missing #0 #1", "send checkpoint 1.0"], (
        "it has gone back to a valid checkpoint"
    )


def test_a_job_that_another_optimizer_has_had_since_is_loaded_again() -> None:
    """As on a copy of the state dir, behind the same address."""
    dialogue = training(step=2)
    assert dialogue.order(pb.Open(job="a", generation=4)) == ["drop job", "load a"]
    assert dialogue.loaded(generation=1, step=0)[:2] == [
        "save generation 5",
        "send training 5.0, missing #0 #1",
    ]


def test_void_checkpoints_are_part_of_the_load() -> None:
    dialogue = training()
    void = pb.Void(generation=1, step=1)
    order = pb.Open(job="a", void=[void])
    loads = [each for each in dialogue.core.handle(ev.Ordered(1, order)) if isinstance(each, ev.Load)]
    assert loads == [ev.Load("a", order.spec_json, (void,))]


def test_a_checkpoint_that_became_void_while_it_was_loaded_is_not_used() -> None:
    dialogue = Dialogue()
    dialogue.open()
    assert open_without(dialogue, (1, 1)) == [], "it is being loaded"
    assert dialogue.loaded(generation=1, step=2) == ["load a"]
    assert dialogue.loaded(generation=1, step=1)[0] == "save generation 2"


def test_a_checkpoint_of_a_later_generation_is_valid() -> None:
    dialogue = Dialogue()
    open_without(dialogue, (1, 1))
    assert dialogue.loaded(generation=2, step=2)[0] == "save generation 3"
