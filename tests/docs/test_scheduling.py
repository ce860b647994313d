"""The worked example of docs/use/scheduling.md is what the scheduler decides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from aggregator.core.scheduling.scheduler import decide
from aggregator.core.scheduling.views import JobView, Settings, State, WorkerView

PAGE = (Path(__file__).parents[2] / "docs" / "use" / "scheduling.md").read_text()
SETTINGS = Settings(max_running_jobs=8, comeback_seconds=120.0)
ANN = JobView("ann", order=0, min_workers=2, max_workers=5)
BOB = JobView("bob", order=1, min_workers=2, max_workers=2)
EVE = JobView("eve", order=2, min_workers=2, max_workers=2, priority=1)


class Cluster:
    """Five hosts, whose workers go where the scheduler sends them."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobView] = {}
        self.workers = {name: WorkerView(name, move_seconds=20.0) for name in ("h1", "h2", "h3", "h4", "h5")}

    def submit(self, job: JobView) -> None:
        self.jobs[job.id] = job

    def row(self, event: str) -> str:
        decision = decide(self.jobs.values(), self.workers.values(), SETTINGS)
        for name, job in decision.assignment.items():
            self.workers[name] = replace(self.workers[name], job=job)
        for name in (*decision.starts, *decision.requeued):
            state = State.QUEUED if name in decision.requeued else State.RUNNING
            self.jobs[name] = replace(self.jobs[name], state=state)
        cells = [self._cell(name) for name in ("ann", "bob", "eve")]
        return f"| {' | '.join([event, *cells])} |"

    def _cell(self, job: str) -> str:
        if job not in self.jobs:
            return ""
        return " ".join(each.id for each in self.workers.values() if each.job == job) or "waits"


def example() -> Iterator[str]:
    cluster = Cluster()
    cluster.submit(ANN)
    yield cluster.row("Ann's job is submitted")
    cluster.submit(BOB)
    yield cluster.row("Bob's job is submitted")
    cluster.submit(EVE)
    yield cluster.row("Eve's job is submitted, with priority 1")
    lost = next(name for name, each in cluster.workers.items() if each.job == "eve")
    del cluster.workers[lost]
    yield cluster.row(f"{lost} is lost")
    del cluster.jobs["eve"]
    yield cluster.row("Eve's job ends")
    cluster.workers[lost] = WorkerView(lost, move_seconds=20.0)
    yield cluster.row(f"{lost} is back")


def test_the_example_is_what_the_scheduler_decides() -> None:
    shown = [line for line in PAGE.splitlines() if line.count("|") == 5][2:]
    assert shown == list(example())
