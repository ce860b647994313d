"""The aggregator's trackers: open while their jobs run, closed with them, and bounded when they hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from aggregator import tracking as tracking_module
from aggregator.tracking import JobTracking
from protos.jobs_pb2 import CANCELLED, PAUSED, RUNNING, Job, JobEvent
from services.config.job import JobConfig
from services.config.job_parts import TrackingConfig
from services.config.models import LinearRegressionConfig
from services.tracking import catalogue, job_recorders
from services.tracking.points import Point
from services.tracking.tracker import Run, Tracker, WrittenSteps


def spec(*trackers: str, written_by: str = "aggregator") -> str:
    tracking = TrackingConfig.model_validate({"trackers": trackers, "written_by": written_by})
    return JobConfig(model=LinearRegressionConfig(), tracking=tracking).to_json()


def step(job: str, number: int = 1) -> JobEvent:
    return JobEvent(job=Job(id=job, state=RUNNING, step=number, loss=1.0), kind="step", seconds=1.0)


def ended(job: str) -> JobEvent:
    return JobEvent(job=Job(id=job, state=CANCELLED), kind="state", seconds=1.0)


def paused(job: str) -> JobEvent:
    return JobEvent(job=Job(id=job, state=PAUSED), kind="state", seconds=1.0)


def written_steps(file: Path) -> list[int]:
    return [int(line.split(",")[1]) for line in file.read_text().splitlines()[1:]]


def run(
    folder: Path, specs: dict[str, str | None], act: Callable[[JobTracking], None]
) -> list[tuple[str, str]]:
    """Act on the event loop, close the trackers, and return what they told."""
    told: list[tuple[str, str]] = []

    async def main() -> None:
        tracking = JobTracking(
            folder, specs.get, lambda name, points: None, lambda job, text: told.append((job, text))
        )
        act(tracking)
        await asyncio.to_thread(tracking.close)
        await asyncio.sleep(0)  # calls from threads that have come

    asyncio.run(main())
    return told


def test_jobs_have_folders_of_their_own_which_pruning_removes(tmp_path: Path) -> None:
    specs = {"a": spec("csv"), "b": spec("jsonl"), "c": spec(), "d": spec("csv", written_by="submitter")}

    def act(tracking: JobTracking) -> None:
        for job in specs:
            tracking.record(step(job))
            tracking.record(ended(job))
        tracking.record(ended("a"))  # told again

    assert run(tmp_path, {**specs, "old": "{}"}, act) == []
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("metrics.*"))
    assert found == ["a/metrics.csv", "b/metrics.jsonl"], "none for c and d"
    run(tmp_path, {}, lambda tracking: [tracking.remove(job) for job in ("a", "a", "c")] and None)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_jobs_that_run_at_once_keep_their_trackers_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_noted(name: str, run: Run) -> Tracker:
        opened.append(run.job)
        return catalogue.open_tracker(name, run)

    monkeypatch.setattr(job_recorders, "open_tracker", open_noted)
    steps = list(range(1, 21))

    def act(tracking: JobTracking) -> None:
        for number in steps:
            for job in "ab":
                tracking.record(step(job, number))
        tracking.record(ended("a"))
        tracking.record(step("b", 21))

    assert run(tmp_path, dict.fromkeys("ab", spec("csv")), act) == []
    assert sorted(opened) == ["a", "b"]
    assert written_steps(tmp_path / "a" / "metrics.csv") == steps
    assert written_steps(tmp_path / "b" / "metrics.csv") == [*steps, 21]


def test_a_job_that_goes_on_opens_its_trackers_after_they_were_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    goes_on = threading.Event()

    class SlowToClose:
        written = WrittenSteps()

        def write(self, points: Sequence[Point]) -> None:
            calls.extend(f"write {point.step}" for point in points)

        def close(self) -> None:
            goes_on.wait(60)
            calls.append("close")

    monkeypatch.setattr(job_recorders, "open_tracker", lambda name, run: SlowToClose())

    def act(tracking: JobTracking) -> None:
        tracking.record(step("a", 1))
        tracking.record(paused("a"))
        tracking.record(step("a", 2))
        goes_on.set()

    assert run(tmp_path, {"a": spec("csv")}, act) == []
    assert calls == ["write 1", "close", "write 2", "close"]


@pytest.fixture(autouse=True)
def patient_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pause of the disk be longer than the wait for trackers that are closed."""
    monkeypatch.setattr(tracking_module, "_CLOSE_SECONDS", 60.0)


@pytest.mark.parametrize("stored", [None, "{}", "no JSON"])
def test_a_job_that_can_t_be_read_has_none(tmp_path: Path, stored: str | None) -> None:
    assert run(tmp_path, {"a": stored}, lambda tracking: tracking.record(step("a"))) == []
    assert not list(tmp_path.iterdir())


def test_trackers_that_hang_are_no_more_than_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    opened: list[str] = []

    class Hanging:
        written = WrittenSteps()

        def write(self, points: Sequence[Point]) -> None:
            released.wait(60)

        def close(self) -> None:
            pass

    def open_hanging(name: str, run: Run) -> Tracker:
        opened.append(run.job)
        return Hanging()

    monkeypatch.setattr(job_recorders, "open_tracker", open_hanging)
    monkeypatch.setattr(tracking_module, "_MOST_ENDED", 2)
    monkeypatch.setattr(tracking_module, "_CLOSE_SECONDS", 0.0)
    jobs = ("a", "b", "c", "d")

    def act(tracking: JobTracking) -> None:
        for job in jobs:
            tracking.record(step(job))
            tracking.record(ended(job))

    try:
        told = run(tmp_path, dict.fromkeys(jobs, spec("csv")), act)
    finally:
        released.set()
    assert [job for job, _ in told] == ["c", "d", "a", "b"]
    assert told[0][1].startswith("no trackers: those of 2 ended jobs hang")
    assert told[2][1].startswith("trackers: not done"), (
        "points that are lost at the end are not lost in silence"
    )
    assert set(opened) <= {"a", "b"}
