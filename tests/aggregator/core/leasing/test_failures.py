"""Tests of failed leases: a failure on one worker is the worker's fault, on two workers the job's."""

from __future__ import annotations

import pytest

from aggregator.core import events as ev
from aggregator.core.leasing.failures import LeasedWork, LeaseFailures
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import FAILED, RUNNING
from services.protocol.phases import JobPhase
from services.protocol.versions import Version
from tests.support.dialogues.aggregator import Dialogue, training
from tests.support.facts import has_facts


def work(first: int, count: int, step: int = 5, phase: JobPhase = JobPhase.TRAIN) -> LeasedWork:
    return LeasedWork(phase, Version(1, step), range(first, first + count))


def test_work_that_fails_on_two_workers_names_both_reasons() -> None:
    failures = LeaseFailures()
    assert failures.add("w1", work(0, 4), "index 70000") is None
    assert failures.add("w1", work(0, 2), "index 70000") is None, "the same worker again"
    fault = failures.add("w2", work(1, 2), "no row 70000")
    assert has_facts(fault, "micro-batches 1-2 ... step 5 ... w1: index 70000 ... w2: no row 70000")


@pytest.mark.parametrize(
    "other",
    [
        work(4, 4),
        work(0, 4, step=6),
        work(0, 4, phase=JobPhase.EVALUATE),
        LeasedWork(JobPhase.TRAIN, None, range(4)),
    ],
)
def test_failures_of_other_work_do_not_blame_the_job(other: LeasedWork) -> None:
    failures = LeaseFailures()
    failures.add("w1", work(0, 4), "out of memory")
    assert failures.add("w2", other, "out of memory") is None


def test_work_that_succeeds_elsewhere_clears_its_failures() -> None:
    failures = LeaseFailures()
    failures.add("w1", work(0, 4), "out of memory")
    failures.add("w1", work(4, 2), "out of memory")
    failures.clear(work(0, 1))
    assert failures.add("w2", work(0, 4), "out of memory") is None
    fault = failures.add("w2", work(5, 1), "no memory")
    assert has_facts(fault, "micro-batch 5 ... step 5 ... w1: out of memory ... w2: no memory")


def test_failed_work_is_described_by_its_phase() -> None:
    assert str(work(3, 1, phase=JobPhase.EVALUATE)) == "batch 3 of step 5"
    assert str(LeasedWork(JobPhase.INITIALISE, None, range(1))) == "making the initial weights"


# ---- in a job ----


def fails(dialogue: Dialogue, session: int, reason: str) -> list[str]:
    return dialogue.says(session, pb.Failure(job="a", lease=dialogue.leases[session], reason=reason))


def test_a_job_that_fails_on_two_workers_ends_and_refuses_neither() -> None:
    dialogue = training(1, 2, 3)
    dialogue.computed(1)
    fails(dialogue, 2, "token 70000")
    assert dialogue.job().state == RUNNING
    assert "save a failed" in fails(dialogue, 1, "token 70000 of 65000")
    assert dialogue.job().state == FAILED
    facts = "micro-batch 2 ... step 0 ... w2: token 70000 ... w1: token 70000 of 65000"
    assert has_facts(dialogue.job().detail, facts)


def test_a_lease_that_another_worker_could_do_fails_no_job() -> None:
    dialogue = training(1, 2)
    dialogue.computed(1)
    assert "1 <- train 2 of 1.0" in fails(dialogue, 2, "out of memory")
    dialogue.computed(1)
    dialogue.give(ev.WorkerLost(2, "gone"))
    assert dialogue.job().state == RUNNING
    fails(dialogue, 1, "out of memory")
    assert dialogue.job().state == RUNNING, "the other one was to blame for its half"


@pytest.mark.parametrize(("phase", "what"), [("initialise", "initial weights"), ("evaluate", "batch 0 of")])
def test_initialisation_and_evaluation_leases_end_too(phase: str, what: str) -> None:
    if phase == "initialise":
        dialogue = Dialogue()
        dialogue.submit()
        dialogue.optimizer()
        dialogue.stands(0, 0, state=pb.OptimizerStatus.EMPTY)
        dialogue.joins(1)
        dialogue.joins(2)
    else:
        dialogue = training(1, 2, step=4)
        for index in (1, 2):
            dialogue.evaluated(2, 1, 4, (index, 1.0))
    for _ in range(3):
        assert dialogue.job().state == RUNNING
        fails(dialogue, 1, "no")
    fails(dialogue, 2, "no")
    assert dialogue.job().state == FAILED
    assert what in dialogue.job().detail and dialogue.job().detail.endswith(
        "failed on two workers; w1: no; w2: no"
    )
