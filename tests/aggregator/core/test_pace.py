"""Time that is left: from the newest steps, over breaks, going back and restarts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.core.pace import Pace, StepParts, estimate_seconds_left
from protos.jobs_pb2 import Job
from services.protocol.plan import JobPlan

STEPS = 1000


def run_steps(pace: Pace, job: Job, now: float, count: int, seconds: float) -> float:
    """Commit some steps of equal duration; return the time of the last."""
    for _ in range(count):
        job.step += 1
        now += seconds
        pace.note_step(now)
    return now


def begin(evaluate_every: int = 0) -> tuple[Job, JobPlan, Pace]:
    job, plan = Job(steps=STEPS), JobPlan(STEPS, 1, evaluate_every=evaluate_every)
    pace = Pace(job, plan)
    pace.enter()
    return job, plan, pace


def test_evaluations_count_from_the_start_by_their_sizes_and_then_as_measured() -> None:
    job = Job(steps=STEPS)
    pace = Pace(job, JobPlan(STEPS, 4, evaluate_every=100, batch_size=8, validation_batch_size=16))
    pace.enter()
    pace.learn_batches(60)
    now = run_steps(pace, job, 0.0, 2, seconds=2.0)
    # 60 batches of 16 are 30 steps of 4 times 8, and a forward pass takes a third of a pass.
    assert job.seconds_left == pytest.approx(998 * 2.0 + 10 * 30 * 2.0 / 3)
    now = run_steps(pace, job, now, 98, seconds=2.0)
    pace.note_evaluated(0, 60, now)
    assert job.seconds_left == pytest.approx(900 * 2.0 + 10 * 30 * 2.0 / 3), "the one under way included"
    pace.note_evaluated(15, 60, now + 10.0)
    assert job.seconds_left == pytest.approx(900 * 2.0 + 30.0 + 9 * 30 * 2.0 / 3)
    assert (job.evaluated_batches, job.evaluation_batches) == (15, 60)
    pace.note_evaluation(now + 40.0)
    assert job.seconds_left == pytest.approx(900 * 2.0 + 9 * 40.0)
    assert (job.evaluated_batches, job.evaluation_batches) == (0, 0)


def test_nothing_is_known_before_the_second_step() -> None:
    job, _, pace = begin()
    job.step += 1
    assert pace.note_step(100.0) is None, "it contains the job's start"
    assert not job.HasField("seconds_left")
    job.step += 1
    assert pace.note_step(102.0) == 2.0
    assert job.seconds_left == (STEPS - 2) * 2.0


def test_a_job_that_goes_back_has_the_lost_steps_more_to_do_and_no_others() -> None:
    job, _, pace = begin()
    now = run_steps(pace, job, 0.0, 500, seconds=0.1)
    before = job.seconds_left
    job.step = 400
    pace.enter()  # the optimizer died; the job waited for it for ten minutes
    assert job.seconds_left == pytest.approx(before + 100 * 0.1)
    now = run_steps(pace, job, now + 600, 1, seconds=0.1)
    assert job.seconds_left == pytest.approx(599 * 0.1)
    run_steps(pace, job, now, 1, seconds=0.1)
    assert job.seconds_left == pytest.approx(598 * 0.1)


def test_a_step_that_waited_for_a_worker_does_not_change_it() -> None:
    job, _, pace = begin()
    now = run_steps(pace, job, 0.0, 50, seconds=0.1)
    run_steps(pace, job, now, 1, seconds=300.0)
    assert job.seconds_left == pytest.approx((STEPS - 51) * 0.1)


def test_steps_that_become_slower_for_good_do() -> None:
    job, _, pace = begin()
    now = run_steps(pace, job, 0.0, 50, seconds=0.1)
    run_steps(pace, job, now, 50, seconds=0.4)
    assert job.seconds_left == pytest.approx((STEPS - 100) * 0.4)


def test_the_next_aggregator_goes_on_from_the_record() -> None:
    job, plan, pace = begin(evaluate_every=100)
    now = run_steps(pace, job, 0.0, 100, seconds=0.1)
    pace.note_evaluation(now + 3.0)
    saved = Job.FromString(job.SerializeToString())
    saved.step = 50  # the newest checkpoint
    after = Pace(saved, plan)
    after.enter()
    assert saved.seconds_left == pytest.approx(950 * 0.1 + 10 * 3.0)
    run_steps(after, saved, 1e6, 3, seconds=9.0)  # workers come back one by one
    assert saved.seconds_left == pytest.approx(947 * 0.1 + 10 * 3.0)


def test_the_time_of_an_evaluation_is_no_step_s() -> None:
    job, _, pace = begin(evaluate_every=100)
    now = run_steps(pace, job, 0.0, 100, seconds=1.0)
    pace.note_evaluation(now + 30.0)
    assert job.seconds_left == pytest.approx(900 * 1.0 + 9 * 30.0)
    job.step += 1
    assert pace.note_step(now + 31.0) == 1.0, "the step began when the evaluation had ended"
    assert job.step_seconds == 1.0


def test_steps_count_that_are_all_followed_by_an_evaluation() -> None:
    job, _, pace = begin(evaluate_every=1)
    for number in range(1, 4):
        job.step = number
        pace.note_step(10.0 * number)
        pace.note_evaluation(10.0 * number + 4.0)
    assert (job.step_seconds, job.evaluation_seconds) == (6.0, 4.0)
    assert job.seconds_left == (STEPS - 3) * 10.0


@given(st.integers(1, 60), st.integers(0, 70), st.integers(0, 80))
def test_all_evaluations_to_come_count(steps: int, evaluate_every: int, step: int) -> None:
    plan = JobPlan(steps, 1, evaluate_every=evaluate_every)
    due = sum(plan.evaluates_at(later) for later in range(step + 1, steps + 1))
    assert plan.evaluations_after(step) == due
    assert estimate_seconds_left(plan, step, 0.0, 1.0) == due


def test_a_steps_parts_are_shares_of_its_duration() -> None:
    spent = {"computing": 5.0}
    parts = StepParts(lambda now: dict(spent))
    assert parts.split(2.0, 0.0) is None, "it is unknown when the first step began"
    spent.update(computing=11.0, wire=1.0, update=1.0, others=3.0, stalled=1.0)
    assert parts.split(None, 2.0) is None, "its duration is unknown"
    spent.update(computing=17.0, wire=2.0, update=2.0, others=6.0, stalled=2.0)
    split = parts.split(6.0, 4.0)
    assert split is not None
    assert (split.compute_seconds, split.wire_seconds, split.update_seconds) == (3.0, 0.5, 0.5)
    assert split.wait_seconds == 2.0
    assert parts.split(1.0, 5.0) is None, "no worker had any time"
    spent.update(computing=16.0, others=8.0)
    split = parts.split(1.0, 6.0)
    assert split is not None
    assert (split.compute_seconds, split.wait_seconds) == (0.0, 1.0), "no part is negative"
    parts.forget()
    assert parts.split(1.0, 7.0) is None
    spent.update(others=9.0)
    parts.begin(8.0)
    assert parts.split(1.0, 8.0) is None, "what was spent before the step began is not the step's"
