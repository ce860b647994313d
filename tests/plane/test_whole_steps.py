"""Steps of jobs through real planes have the bits of plain numpy; each planted mistake of a plane is found."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plane.driven_planes import DrivenPlanes
from tests.plane.plane_mutations import PLANE_MUTATIONS
from tests.plane.whole_steps import WholeSteps

LIMIT_SECONDS = 20.0
SEEDS = range(8)
MOST_SEEDS = 40
"""Number of seeds in which a mistake must be found."""


def run_seed(seed: int, folder: Path, steps: int = 2) -> None:
    """Run the jobs of a seed at once; one of two jobs is opened once more.

    Raises:
        WrongResult: a plane has made something else than plain numpy, or failed.
    """

    async def run_all(planes: DrivenPlanes) -> None:
        jobs = [WholeSteps(job, seed, planes, worker, folder) for worker, job in enumerate(names, 1)]
        for job in jobs:
            job.others = [each for each in jobs if each is not job]
        await asyncio.gather(*(run_job(job) for job in jobs))

    async def run_job(job: WholeSteps) -> None:
        for _ in range(job.worker):
            await job.run(steps)

    async def run() -> None:
        planes = DrivenPlanes(rng.choice([1, 1, 2, 3]))
        try:
            await asyncio.wait_for(run_all(planes), LIMIT_SECONDS)
        finally:
            planes.close()

    rng = random.Random(seed)
    names = rng.choice(["j", "jk", "jk"])
    asyncio.run(run())


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_of_one_or_two_jobs_in_any_order_have_the_bits_of_plain_numpy(
    seed: int, tmp_path: Path
) -> None:
    run_seed(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mutate", PLANE_MUTATIONS)
def test_each_mistake_of_a_plane_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_seed(seed, tmp_path)
        except Exception:
            return
    pytest.fail(f"no seed below {MOST_SEEDS} finds it")
