"""A job's log gives tt-train's scripts the right figures: their regular expressions, of both formats it has had.

tt-train printed `Step: 1, Loss: 11.0` and `Full step time 703.1 ms` until 2026-04, and has printed
`Step: 1, Loss: 11.0, Time: 703.1 ms` since (tt-metal's pull requests 41778 and 47661).
"""

from __future__ import annotations

import asyncio
import math
import re
from pathlib import Path

import pytest

from aggregator.core import events as ev
from aggregator.storage.journal import Journal
from aggregator.storage.log_lines import lines_of_event
from protos.cluster_pb2 import Commit
from protos.jobs_pb2 import Job, JobEvent
from tests.support.dialogues.aggregator import Dialogue

ANALYZE_STEPS = {
    "step": re.compile(r"Step:\s*(\d+)"),
    "loss": re.compile(r"Loss:\s*([\d.]+)"),
    "time": re.compile(r"Full step time\s+([\d.]+)\s*ms"),
}
"""What analyze_steps.py looks for in the whole text, each apart. It refuses a log with unlike numbers of them."""
PLOT_LOSS, PLOT_TIME = re.compile(r"Step: \d+, Loss: ([\d.]+)"), re.compile(r"Full step time ([\d.]+) ms")
"""What plot_training_comparison.py looked for in each line until 2026-06."""
PLOT_BOTH = re.compile(r"Step: \d+, Loss: ([\d.]+), Time: ([\d.]+) ms")
"""What it has looked for since."""
NEW_TIME = re.compile(r"Time:\s*([\d.]+)\s*ms")
SPEED = re.compile(
    r"^\[Worker 0\] Step (\d+)/(\d+): Loss = ([\d.]+), Samples/s = ([\d.]+), Tokens/s = ([\d.]+)$"
)
"""Line of the multi-host example's trainer."""

STEPS = 20
STEP_SECONDS = 0.25
BATCH_SIZE = 5
TOKENS_PER_STEP = 40  # 4 micro-batches of 10
LOSS = 2.125  # of each step, unless a test says so


def train(losses: dict[int, float], *, skipped: int | None = None, evaluate_every: int = 5) -> list[JobEvent]:
    """Return the events of a job of `STEPS` steps, with these losses of some steps, counted from 1."""
    dialogue = Dialogue()
    dialogue.submit(steps=STEPS, evaluate_every=evaluate_every, batch_size=BATCH_SIZE)
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 0))
    dialogue.stands(1, 0)
    for step in range(STEPS):
        dialogue.chunk(1, 1, step, 0, losses=(losses.get(step + 1, LOSS),) * 4)
        dialogue.now += STEP_SECONDS
        commit = Commit(job="a", generation=1, step=step, applied=step + 1 != skipped)
        dialogue.give(ev.FromOptimizer(commit))
        if (step + 1) % evaluate_every == 0:
            dialogue.weights(1, step + 1, 0)
            dialogue.weights_loaded(1, 1, step + 1)
            for batch in range(3):
                dialogue.evaluated(1, 1, step + 1, (batch, 3.0))
    return [
        JobEvent(job=note.job, kind=note.kind, text=note.text, step_seconds=note.step_seconds)
        for note in dialogue.published
    ]


def read_log(folder: Path, events: list[JobEvent]) -> list[str]:
    """Return the lines of a journal to which these events were published."""
    journal = Journal(folder)
    for event in events:
        journal.publish(event)

    async def read() -> list[str]:
        return [line.text async for line in journal.lines("a")]

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("losses", "skipped", "plotted"),
    [
        pytest.param({}, None, range(1, STEPS + 1), id="all is well"),
        pytest.param({}, 7, range(1, STEPS + 1), id="a skipped step with a loss"),
        pytest.param(
            {7: math.nan, 8: math.inf}, 7, [*range(1, 7), *range(9, STEPS + 1)], id="losses to skip"
        ),
    ],
)
def test_scripts_find_loss_and_time_of_the_same_steps_among_evaluations(
    losses: dict[int, float], skipped: int | None, plotted: list[int], tmp_path: Path
) -> None:
    events = train(losses, skipped=skipped)
    assert sum(event.kind == "evaluation" for event in events) == STEPS // 5
    lines = read_log(tmp_path, events)
    text = "\n".join(lines)
    found = {what: pattern.findall(text) for what, pattern in ANALYZE_STEPS.items()}
    assert [int(step) for step in found["step"]] == list(plotted)
    expected_losses, expected_ms = [LOSS] * len(plotted), [1000 * STEP_SECONDS] * len(plotted)
    old_losses = [match[1] for line in lines if (match := PLOT_LOSS.search(line))]
    old_times = [match[1] for line in lines if (match := PLOT_TIME.search(line))]
    new = [match.groups() for line in lines if (match := PLOT_BOTH.search(line))]
    for each in (found["loss"], old_losses, [loss for loss, _ in new]):
        assert [float(loss) for loss in each] == expected_losses
    for each in (found["time"], old_times, [time for _, time in new], NEW_TIME.findall(text)):
        assert [float(time) for time in each] == pytest.approx(expected_ms), "of the first step, too"


def test_every_tenth_step_has_the_line_of_the_multi_host_example(tmp_path: Path) -> None:
    lines = read_log(tmp_path, train({}, evaluate_every=STEPS))
    speeds = [found.groups() for line in lines if (found := SPEED.search(line))]
    samples, tokens = 4 * BATCH_SIZE / STEP_SECONDS, TOKENS_PER_STEP / STEP_SECONDS
    assert speeds == [
        (step, str(STEPS), "2.1250", f"{samples:.2f}", f"{tokens:.2f}") for step in ("10", "20")
    ]


def test_a_step_whose_loss_another_aggregator_had_matches_no_script(tmp_path: Path) -> None:
    dialogue = Dialogue()
    dialogue.submit(steps=STEPS)
    dialogue.optimizer()
    dialogue.joins(1, holds=(1, 3))
    dialogue.stands(1, 3)
    dialogue.commits(1, 2)
    text = "\n".join(dialogue.notes)
    assert "Step 3: loss unknown" in text
    assert not any(pattern.search(text) for pattern in (*ANALYZE_STEPS.values(), PLOT_LOSS, NEW_TIME))


def test_followers_of_a_log_get_the_lines_of_the_file() -> None:
    """Check that the lines follow from the event alone, as `Logs` sends it to those who follow."""
    event = [event for event in train({}) if event.kind == "step"][-1]
    own, time, speed = (line.text for line in lines_of_event(event))
    assert own == event.text
    assert PLOT_TIME.fullmatch(time) and SPEED.fullmatch(speed)


@pytest.mark.parametrize(
    "event",
    [
        JobEvent(job=Job(step=10, loss=2.0), kind="evaluation", text="Validation loss: 2.0000000 at step 10"),
        JobEvent(job=Job(step=10), kind="step", text="Step 10: loss unknown", step_seconds=1.0),
    ],
    ids=["evaluation", "unknown loss"],
)
def test_other_events_have_their_own_line_alone(event: JobEvent) -> None:
    """A script pairs losses and times, so a step without a loss has no time."""
    assert [line.text for line in lines_of_event(event)] == [event.text]
