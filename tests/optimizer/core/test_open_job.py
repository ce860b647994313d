"""State of an open job: which checkpoints belong to it, and which are void."""

from __future__ import annotations

import pytest

from optimizer.core.open_job import OpenJob, is_void
from protos import cluster_pb2 as pb
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import CHUNK_ELEMENTS
from tests.support.dialogues.optimizer import PLAN


def job_of_generation(opened: int, now: int) -> OpenJob:
    """Return a job that was opened under one generation and now has another one, after steps that started over."""
    job = OpenJob("a", PLAN, opened)
    job.generation = now
    return job


@pytest.mark.parametrize(
    ("job", "generation", "owned"),
    [("a", 3, True), ("a", 4, True), ("a", 5, True), ("a", 2, False), ("a", 6, False), ("b", 4, False)],
)
def test_a_job_owns_the_checkpoints_taken_since_it_was_opened(job: str, generation: int, owned: bool) -> None:
    assert job_of_generation(3, 5).owns(job, generation) is owned


def test_a_job_goes_on_if_it_was_opened_after_all_that_was_declared_void() -> None:
    order = pb.Open(job="a", void=[pb.Void(generation=2, step=7), pb.Void(generation=4, step=1)])
    assert not job_of_generation(3, 4).goes_on(order)
    assert not job_of_generation(3, 5).goes_on(order), (
        "it began a generation with the weights of the one before"
    )
    assert job_of_generation(5, 5).goes_on(order)


@pytest.mark.parametrize(
    ("void", "goes_on"),
    [(pb.Void(generation=4), False), (pb.Void(generation=4, step=0), True), (pb.Void(generation=3), True)],
    ids=["from the initial weights on", "after them", "of an earlier generation"],
)
def test_a_job_does_not_go_on_with_a_checkpoint_that_became_void(void: pb.Void, goes_on: bool) -> None:
    loaded = pb.CheckpointWritten(job="a", generation=4, step=0)
    job = OpenJob("a", PLAN, 5, loaded)
    assert job.goes_on(pb.Open(job="a", generation=5, void=[void])) is goes_on


def test_a_job_does_not_go_on_if_another_optimizer_has_had_it_since() -> None:
    assert job_of_generation(3, 4).goes_on(pb.Open(job="a", generation=4))
    assert not job_of_generation(3, 4).goes_on(pb.Open(job="a", generation=5))


@pytest.mark.parametrize(
    ("generation", "step", "void"),
    [(2, 8, True), (1, 9, True), (2, 7, False), (3, 8, False)],
    ids=["later step", "earlier generation", "last valid step", "later generation"],
)
def test_a_checkpoint_after_the_last_valid_step_is_void(generation: int, step: int, void: bool) -> None:
    checkpoint = pb.CheckpointWritten(job="a", generation=generation, step=step)
    assert is_void(checkpoint, [pb.Void(generation=2, step=7)]) is void
    assert not is_void(checkpoint, [])


@pytest.mark.parametrize(("generation", "void"), [(1, True), (2, True), (3, False)])
def test_not_even_initial_weights_count_if_no_step_does(generation: int, void: bool) -> None:
    checkpoint = pb.CheckpointWritten(job="a", generation=generation, step=0)
    assert is_void(checkpoint, [pb.Void(generation=2)]) is void


def test_weights_are_consistent_when_all_are_of_one_step() -> None:
    job = OpenJob("a", PLAN, 1)
    job.set_layout("layout", 2 * CHUNK_ELEMENTS)
    job.state = pb.OptimizerStatus.RECEIVING
    assert not job.is_consistent
    job.deciding = True  # all initial weights have arrived
    assert job.is_consistent
    job.state, job.deciding, job.updated_chunks = pb.OptimizerStatus.TRAINING, False, 1
    assert not job.is_consistent
    job.updated_chunks = 2
    assert job.is_consistent


def test_no_chunk_is_missing_while_a_step_is_decided() -> None:
    job = OpenJob("a", PLAN, 1)
    job.set_layout("layout", 3 * CHUNK_ELEMENTS)
    job.staged.add(1)
    assert list(from_ranges(job.optimizer_status().missing, 9)) == [0, 2]
    job.deciding = True
    assert not job.optimizer_status().missing
