"""A job's log has the lines that tt-train's scripts read, by regular expressions that follow its documentation."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from aggregator.storage.journal import Journal
from aggregator.storage.log_lines import lines_of_event
from protos.jobs_pb2 import Job, JobEvent
from tests.support.dialogues.aggregator import Dialogue

LOSS = re.compile(r"Step: (\d+), Loss: ([\d.]+)")
STEP_TIME = re.compile(r"Full step time ([\d.]+) ms")
SPEED = re.compile(
    r"^\[Worker 0\] Step (\d+)/(\d+): Loss = ([\d.]+), Samples/s = ([\d.]+), Tokens/s = ([\d.]+)$"
)
"""Lines of tt-train's trainers: TRAINING_LOG_COMPARISON.md and the multi-host example."""

STEPS = 20
STEP_SECONDS = 0.25
BATCH_SIZE = 5
TOKENS_PER_STEP = 40  # 4 micro-batches of 10


def step_events() -> list[JobEvent]:
    """Return the events of a job's steps."""
    dialogue = Dialogue()
    dialogue.submit(steps=STEPS, evaluate_every=STEPS + 1, batch_size=BATCH_SIZE)
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 0))
    dialogue.stands(1, 0)
    for step in range(STEPS):
        dialogue.chunk(1, 1, step, 0, losses=(2.0, 2.0, 2.0, 2.5))
        dialogue.now += STEP_SECONDS
        dialogue.commits(1, step)
    return [
        JobEvent(job=note.job, kind=note.kind, text=note.text, step_seconds=note.step_seconds)
        for note in dialogue.published
        if note.kind == "step"
    ]


def test_scripts_find_loss_and_time_of_every_step_and_the_speed_of_every_tenth(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for event in step_events():
        journal.publish(event)

    async def read() -> list[str]:
        return [line.text async for line in journal.lines("a")]

    text = asyncio.run(read())
    losses = [found for line in text if (found := LOSS.search(line))]
    assert [int(found[1]) for found in losses] == list(range(1, STEPS + 1))
    assert {float(found[2]) for found in losses} == {2.125}
    times = [float(found[1]) for line in text if (found := STEP_TIME.search(line))]
    assert times == pytest.approx([1000 * STEP_SECONDS] * STEPS), "of the first step, too"
    speeds = [found.groups() for line in text if (found := SPEED.search(line))]
    samples, tokens = 4 * BATCH_SIZE / STEP_SECONDS, TOKENS_PER_STEP / STEP_SECONDS
    assert speeds == [
        (step, str(STEPS), "2.1250", f"{samples:.2f}", f"{tokens:.2f}") for step in ("10", "20")
    ]


def test_followers_of_a_log_get_the_lines_of_the_file() -> None:
    """Check that the lines follow from the event alone, as `Logs` sends it to those who follow."""
    event = step_events()[-1]
    own, time, speed = (line.text for line in lines_of_event(event))
    assert own == event.text
    assert STEP_TIME.fullmatch(time) and SPEED.fullmatch(speed)


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(job=Job(step=10, loss=2.0), kind="evaluation", text="Step: 10, Validation loss: 2.0000000"),
        JobEvent(job=Job(step=10), kind="step", text="Step: 10", step_seconds=1.0),
    ],
    ids=["evaluation", "unknown loss"],
)
def test_other_events_have_their_own_line_alone(event: JobEvent) -> None:
    """A script pairs losses and times, so a step without a loss has no time."""
    assert [line.text for line in lines_of_event(event)] == [event.text]
