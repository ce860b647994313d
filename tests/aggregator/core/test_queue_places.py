"""Places in the queue, and the estimates of starts."""

from __future__ import annotations

from aggregator.core.job_report import Record
from aggregator.core.queue_places import QueuePlace, find_places
from protos.jobs_pb2 import QUEUED, RUNNING, Job
from services.errors import Refusal
from services.protocol.plan import JobPlan
from tests.support.dialogues.aggregator import training


def queued(name: str, **fields: float) -> Record:
    """Return a queued job of 10 steps and one evaluation."""
    return Record(Job(id=name, state=QUEUED, **fields), "{}", JobPlan(steps=10, micro_batches=1))


def test_a_start_is_known_while_the_jobs_before_have_measured_steps() -> None:
    ran = queued("b", step=4, step_seconds=2.0, evaluation_seconds=3.0)
    running = Job(id="a", state=RUNNING, seconds_left=60.0)
    places = find_places([ran, queued("c"), queued("d")], running, None)
    assert places == {
        "b": QueuePlace(1, "waits for job a to end", 60.0),
        "c": QueuePlace(2, "waits for 1 job before it", 60.0 + 6 * 2.0 + 3.0),
        "d": QueuePlace(3, "waits for 2 jobs before it", None),
    }
    running.ClearField("seconds_left")
    assert find_places([ran], running, None)["b"].start_seconds is None


def test_a_hindrance_is_what_the_first_job_waits_for() -> None:
    unreadable = Record(Job(id="a", state=QUEUED, step_seconds=1.0), "{}", Refusal("damaged"))
    places = find_places([unreadable, queued("b")], None, "the check")
    assert places["a"] == QueuePlace(1, "the check", 0.0)
    assert places["b"].start_seconds is None


def test_the_core_knows_the_places_of_its_queued_jobs_alone() -> None:
    dialogue = training(1)
    for job in "bcd":
        dialogue.submit(job)
    dialogue.pause("c")
    dialogue.prefer("d", 1)
    places = dialogue.core.queue_places(dialogue.now)
    assert {job: place.position for job, place in places.items()} == {"d": 1, "b": 2}
    assert places["d"].waiting == "waits for job a to end"
