"""What an open job knows of itself: what was made of it, and what of that counts."""

from __future__ import annotations

import pytest

from optimizer.core.open_job import OpenJob, is_void
from protos import cluster_pb2 as pb
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import CHUNK_ELEMENTS
from tests.support.dialogues.optimizer import PLAN


def job_of_generation(opened: int, now: int) -> OpenJob:
    """A job that was opened under one generation and has started a step over since."""
    job = OpenJob("a", PLAN, opened)
    job.generation = now
    return job


@pytest.mark.parametrize(
    ("job", "generation", "made"),
    [("a", 3, True), ("a", 4, True), ("a", 5, True), ("a", 2, False), ("a", 6, False), ("b", 4, False)],
)
def test_what_was_made_since_the_job_was_opened_is_of_it(job: str, generation: int, made: bool) -> None:
    assert job_of_generation(3, 5).made(job, generation) is made


def test_a_job_counts_once_it_went_back_from_every_void() -> None:
    void = [pb.Void(generation=2, step=7), pb.Void(generation=4, step=1)]
    assert not job_of_generation(3, 4).counts(void)
    assert job_of_generation(3, 5).counts(void)


@pytest.mark.parametrize(
    ("generation", "step", "void"),
    [(2, 8, True), (1, 9, True), (2, 7, False), (3, 8, False)],
    ids=["after it", "of a generation before", "of the last step that counts", "made again since"],
)
def test_a_checkpoint_is_void_after_the_last_step_that_counts(generation: int, step: int, void: bool) -> None:
    checkpoint = pb.CheckpointWritten(job="a", generation=generation, step=step)
    assert is_void(checkpoint, [pb.Void(generation=2, step=7)]) is void
    assert not is_void(checkpoint, [])


def test_the_weights_rest_when_all_are_of_one_step() -> None:
    job = OpenJob("a", PLAN, 1)
    job.take_layout("layout", 2 * CHUNK_ELEMENTS)
    job.state = pb.OptimizerStatus.RECEIVING
    assert not job.rests
    job.deciding = True  # all initial weights are there
    assert job.rests
    job.state, job.deciding, job.updated = pb.OptimizerStatus.TRAINING, False, 1
    assert not job.rests
    job.updated = 2
    assert job.rests


def test_nothing_is_missing_while_it_is_decided() -> None:
    job = OpenJob("a", PLAN, 1)
    job.take_layout("layout", 3 * CHUNK_ELEMENTS)
    job.staged.add(1)
    assert list(from_ranges(job.optimizer_status().missing, 9)) == [0, 2]
    job.deciding = True
    assert not job.optimizer_status().missing
