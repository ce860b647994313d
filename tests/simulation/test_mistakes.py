"""The simulation bites: seeds of it find each mistake that is made in a core on purpose.

What holds of every history was tried by them, on hostile seeds from 0 on: a step that is committed
twice (`commits_twice`), a generation that does not rise (`keeps_the_generation`), a micro-batch that is counted
twice (`counts_duplicates`) and one that nobody computes, so that the job does not end (`forgets_orphans`) each took one
seed; of the others, which print theirs, the rarest (`leaves_leases_with_silent_workers`) took 136, and 3 with those
faults alone that show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, islice

import pytest

from tests.simulation.mistakes import (
    LETTING_LIES_IN,
    MISTAKES,
    SHOWN_BY,
    skips_a_step_that_is_to_stop_the_job,
)
from tests.simulation.scenario import Scenario
from tests.simulation.truth import SimulationFailed
from tests.simulation.world import World

MISTAKE_SEEDS = 300
"""The rarest of the mistakes shows in one seed of a hundred."""


@pytest.mark.parametrize(
    ("mistake", "fault_kinds"),
    [
        *((mistake, SHOWN_BY.get(mistake, ())) for mistake in MISTAKES),
        *(pytest.param(mistake, (), marks=pytest.mark.slow) for mistake in SHOWN_BY),
    ],
    ids=lambda each: getattr(each, "__name__", ",".join(each) if isinstance(each, tuple) else None),
)
def test_a_mistake_in_a_core_fails_a_seed(
    mistake: Callable[[pytest.MonkeyPatch], None],
    fault_kinds: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mistake(monkeypatch)
    for seed in range(MISTAKE_SEEDS):
        try:
            World(seed, scenario=replace(Scenario.hostile(seed), fault_kinds=fault_kinds)).run()
        except Exception as error:
            assert not isinstance(error, TypeError), "the mistake does not fit the core any more"
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return
    pytest.fail(f"{mistake.__name__} passes {MISTAKE_SEEDS} seeds")


def test_a_step_that_is_to_stop_a_job_is_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    skips_a_step_that_is_to_stop_the_job(monkeypatch)
    worlds = (
        world
        for world in map(World, count())
        if any(
            "on_non_finite" in job.why_it_fails and job.cancelled_seconds is None
            for job in world.scenario.jobs
        )
    )
    with pytest.raises(SimulationFailed, match="of a job that is to stop"):
        for world in islice(worlds, 10):
            world.run()


@pytest.mark.parametrize("mistake", LETTING_LIES_IN, ids=lambda mistake: mistake.__name__)
def test_a_mistake_lets_a_lie_into_the_weights(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    for seed in range(100):
        try:
            World(seed, scenario=Scenario.lying(seed)).run()
        except SimulationFailed as error:
            print(f"seed {seed}: {error}")
            return
    pytest.fail(f"{mistake.__name__} passes 100 seeds")
