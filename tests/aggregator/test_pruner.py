"""The retention deletes nothing by age for a day after the host's clock was set forward."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from aggregator.core.clock_jumps import DISTRUST_SECONDS
from aggregator.core.retention import Limits, Part
from aggregator.history.writer import MetricsHistory
from aggregator.optimizer_links.link import OptimizerLink
from aggregator.pruner import Pruner
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.journal import Journal
from aggregator.stored_checkpoints import StoredCheckpoints
from protos.cluster_pb2 import RemoveCheckpointsReply
from protos.jobs_pb2 import PAUSED, QUEUED, SUCCEEDED, Job
from services.runtime.aggregator_metrics import AggregatorMetrics

DAY_SECONDS = 86_400.0
STARTED_SECONDS = 1.7e9


class Link:
    """An optimizer without checkpoints."""

    async def list_checkpoints(self, _: Any) -> AsyncIterator[Any]:
        """Yield nothing."""
        for each in ():
            yield each

    async def remove_checkpoints(self, _: Any) -> RemoveCheckpointsReply:
        """Remove nothing."""
        return RemoveCheckpointsReply()


def make_pruner(folder: Path, queue: JobQueue, limits: Limits, **clocks: Callable[[], float]) -> Pruner:
    return Pruner(
        queue=queue,
        journal=Journal(folder / "logs"),
        history=MetricsHistory(folder / "metrics"),
        stored=StoredCheckpoints(cast(OptimizerLink, Link())),
        live={},
        metrics=AggregatorMetrics(),
        retention={Part.JOBS: limits},
        grace_seconds=60.0,
        remove_tracking=lambda job: None,
        **clocks,
    )


def test_a_paused_job_is_never_pruned(tmp_path: Path) -> None:
    async def scenario() -> None:
        with JobQueue(tmp_path / "queue.sqlite") as queue:
            queue.raise_epoch("a")
            paused = queue.add(Job(name="paused", state=PAUSED), "{}")
            ended = queue.add(Job(name="ended", state=QUEUED), "{}")
            ended.state, ended.ended_seconds = SUCCEEDED, STARTED_SECONDS
            queue.save(ended)
            pruner = make_pruner(tmp_path, queue, Limits(keep=0))
            assert await pruner.prune([paused.id], Part.JOBS, by="root") == []
            assert await pruner._pass()
            assert [each.id for each in queue.page(None, 10).jobs] == [paused.id]

    asyncio.run(scenario())


@pytest.mark.parametrize("limits", [Limits(older_than_seconds=30 * DAY_SECONDS), Limits(keep=0)])
def test_a_clock_that_is_set_forward_makes_no_job_old(tmp_path: Path, limits: Limits) -> None:
    wall = [STARTED_SECONDS]
    elapsed = [100.0]

    async def scenario() -> None:
        with JobQueue(tmp_path / "queue.sqlite") as queue:
            queue.raise_epoch("a")
            job = queue.add(Job(name="done", state=QUEUED), "{}")
            job.state, job.ended_seconds = SUCCEEDED, STARTED_SECONDS
            queue.save(job)
            pruner = make_pruner(tmp_path, queue, limits, clock=lambda: wall[0], elapsed=lambda: elapsed[0])

            async def remains(wall_seconds: float, elapsed_seconds: float) -> int:
                wall[0] += wall_seconds
                elapsed[0] += elapsed_seconds
                assert await pruner._pass()
                return len(queue.page(None, 10).jobs)

            assert await remains(30, 30) == 1
            by_age = limits.keep is None
            assert await remains(365 * DAY_SECONDS, 200) == by_age, "only the age is in doubt"
            assert await remains(DISTRUST_SECONDS - 300, DISTRUST_SECONDS - 300) == by_age
            assert await remains(600, 600) == 0, "a day later the clock is believed"

    asyncio.run(scenario())
