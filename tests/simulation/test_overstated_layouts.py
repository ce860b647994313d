"""Whole simulated clusters whose first worker describes a layout of another size than the job's model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from aggregator.core.events import Note
from tests.simulation.scenario import OVERSTATER, Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

SEEDS = 6


class OverstatedCluster(SimulatedCluster):
    """A cluster that keeps why the lying worker was refused."""

    refusals: list[str]

    def noted(self, note: Note) -> None:
        """Keep the refusal."""
        super().noted(note)
        if f"worker {OVERSTATER} takes no part in the job" in note.text:
            self.refusals.append(note.text)


@pytest.mark.parametrize("message", ["Ready", "Description"])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_finishes_with_the_same_weights_beside_a_worker_with_a_larger_layout(
    seed: int, message: Literal["Ready", "Description"]
) -> None:
    usual = Scenario.hostile(seed)
    job = usual.jobs[0]
    job.submitted_seconds = 45.0  # so that honest workers are there when the lie is found
    job.plan = replace(job.plan, min_workers=1)  # others wait for a first claim without certificates to end
    cluster = OverstatedCluster(seed, scenario=replace(usual, jobs=[job], overstates=message))
    cluster.refusals = []
    cluster.run()  # it checks the weights, and that the job succeeds unless it may fail
    found = [each for each in cluster.refusals if "elements, expected the " in each]
    assert found or seed, "with other seeds a fault, or another worker, may come before the lie"
