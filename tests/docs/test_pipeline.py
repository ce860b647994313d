"""The drawings of docs/use/parallelism.md are what the schedules give."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.pipeline.schedule import Schedule
from services.pipeline.timing import PassSeconds, time_schedule
from tests.support.timed_passes import simulate_passes

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "parallelism.md").read_text()
FORWARD = ("01234567", "⁰¹²³⁴⁵⁶⁷")
BACKWARD = ("abcdefgh", "ABCDEFGH")
SCHEDULES = {
    "gpipe": Schedule("gpipe", 4, 8),
    "1f1b": Schedule("1f1b", 4, 8),
    "interleaved_1f1b": Schedule("interleaved_1f1b", 4, 8, 2),
}


def draw(schedule: Schedule) -> str:
    """Return a line for each stage: a column is half a forward pass through all blocks of a stage, or a quarter of its
    backward pass."""
    seconds = PassSeconds.even(schedule.ranges, 2.0 * schedule.stages, 4.0 * schedule.stages)
    columns = round(time_schedule(schedule, seconds).makespan_seconds)
    lines = [["."] * columns for _ in range(schedule.stages)]
    for one, start, stop in simulate_passes(schedule, seconds):
        turn, stage = divmod(one.range_index, schedule.stages)
        mark = (BACKWARD if one.is_backward else FORWARD)[turn][one.micro_batch]
        lines[stage][round(start) : round(stop)] = mark * round(stop - start)
    return "\n".join(f"    {stage}  {''.join(line)}" for stage, line in enumerate(lines))


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_drawing_is_of_the_schedule(kind: str) -> None:
    assert draw(SCHEDULES[kind]) in PAGE


@pytest.mark.parametrize("kind", SCHEDULES)
def test_the_table_has_the_schedule_s_figures(kind: str) -> None:
    schedule = SCHEDULES[kind]
    seconds = PassSeconds.even(schedule.ranges, 1.0, 2.0)
    bubble = 100 * time_schedule(schedule, seconds).bubble
    in_flight = ", ".join(str(schedule.in_flight_limit(stage)) for stage in range(4))
    assert f"| `{kind}` | {bubble:.0f} % | {in_flight} |" in PAGE


@pytest.mark.parametrize(
    ("hides", "label"), [(False, "transfers hidden by `1f1b`"), (True, "with more in flight")]
)
def test_the_table_says_which_share_of_transfers_is_hidden(hides: bool, label: str) -> None:
    shares = []
    for stages in (2, 4):
        seconds = PassSeconds.even(stages, 1.0 * stages, 2.0 * stages, transfer=1.5)
        times = time_schedule(Schedule("1f1b", stages, 64, hides_transfers=hides), seconds)
        shares.append(f"{100 * times.hidden_share:.0f} %")
    assert f"| {label} | {' | '.join(shares)} |" in PAGE
