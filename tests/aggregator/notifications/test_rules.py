"""What a target is told: each event once, few of a kind at once, and losses that are far too high."""

from __future__ import annotations

import math
import random

import pytest

from aggregator.core.events import NoticeKind
from aggregator.notifications.messages import Notice
from aggregator.notifications.rules import QUIET_SECONDS, JobRules, LossSpikes
from protos.jobs_pb2 import CANCELLED, FAILED, PAUSED, RUNNING, SUCCEEDED, Job, JobEvent, JobState


def event(kind: str, seconds: float = 1.0, text: str = "a line", **job: object) -> JobEvent:
    return JobEvent(
        job=Job(id="a", name="tiny", **{"state": RUNNING, **job}), kind=kind, seconds=seconds, text=text
    )


def told(rules: JobRules, *events: tuple[JobEvent, NoticeKind | None]) -> list[Notice]:
    found = [rules.find(each, tells) for each, tells in events]
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    ("state", "expected"),
    [(SUCCEEDED, ["ended"]), (CANCELLED, ["ended"]), (FAILED, ["failed"]), (PAUSED, []), (RUNNING, [])],
)
def test_an_end_is_told(state: JobState, expected: list[str]) -> None:
    found = told(JobRules({}), (event("state", state=state, text="the reason"), None))
    assert [each.event for each in found] == expected
    assert [each.text for each in found] == ["the reason"] * len(expected)


def test_lines_of_an_ended_job_that_end_nothing_are_not_told() -> None:
    late = event("checkpoint", state=SUCCEEDED), None
    assert told(JobRules({}), late, (event("audit", state=CANCELLED), None)) == []


def test_a_kind_is_told_once_in_a_while_and_the_others_are_counted() -> None:
    rules = JobRules({})
    lost = [
        (event("member", seconds), NoticeKind.WORKER_LOST) for seconds in (1.0, 2.0, 3.0, QUIET_SECONDS + 2)
    ]
    stalled = event("member", 3.0), NoticeKind.STALLED
    found = told(rules, *lost[:3], stalled, lost[3])
    assert [(each.event, each.repeated) for each in found] == [
        ("worker_lost", 0),
        ("stalled", 0),
        ("worker_lost", 2),
    ]
    assert rules.repeated == 0
    told(rules, (event("member", QUIET_SECONDS + 3), NoticeKind.WORKER_LOST))
    (last,) = told(rules, (event("state", QUIET_SECONDS + 4, state=SUCCEEDED), None))
    assert (last.event, last.repeated) == ("ended", 1), "what was not told is told as a number"


def test_a_clock_that_was_set_back_silences_nothing_for_long() -> None:
    rules = JobRules({})
    first = event("member", 1e9), NoticeKind.WORKER_LOST
    later = event("member", 1e9 - 86_400), NoticeKind.WORKER_LOST
    assert len(told(rules, first, later)) == 2


def test_steps_that_are_redone_are_not_told_again() -> None:
    rules = JobRules({"non_finite": 4})
    skipped = [
        (event("step", QUIET_SECONDS * number, step=step, loss=1.0), NoticeKind.NON_FINITE)
        for number, step in enumerate((4, 5, 5, 6))
    ]
    assert [each.step for each in told(rules, *skipped)] == [5, 6]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_told(loss: float) -> None:
    (found,) = told(JobRules({}), (event("step", step=3, loss=loss), None))
    assert (found.event, found.step, found.loss) == ("non_finite", 3, None)


def test_a_spike_is_told_and_hides_no_other() -> None:
    draw = random.Random(1)
    rules, found = JobRules({}), []
    for step in range(1, 2001):
        loss = 4.0 * step**-0.1 + draw.gauss(0, 0.05)
        if step in (700, 701, 1400):
            loss += 2.0
        notice = rules.find(event("step", 30.0 * step, step=step, loss=loss), None)
        found += [notice] if notice is not None else []
    assert [(each.event, each.step) for each in found] == [("loss_spike", 700), ("loss_spike", 1400)]
    assert found[1].repeated == 1, "the second step of the first"


@pytest.mark.parametrize("seed", range(5))
def test_noise_is_no_spike(seed: int) -> None:
    draw = random.Random(seed)
    spikes = LossSpikes()
    assert not any(spikes.add(3.0 * 0.999**step + draw.gauss(0, 0.2)) for step in range(5000))
    steady = LossSpikes()
    assert not any(steady.add(1.0 + 1e-6 * (step % 7)) for step in range(1000))


def test_a_loss_that_stays_higher_becomes_usual() -> None:
    spikes = LossSpikes()
    for _ in range(500):
        spikes.add(1.0)
    found = [spikes.add(10.0) for _ in range(500)]
    assert found[0] and not any(found[100:])
