"""Whole simulated clusters whose first worker describes a layout of another size than the job's model."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from aggregator.core.events import Note
from protos.jobs_pb2 import SUCCEEDED
from services.tensors.layout import MAX_ELEMENTS
from tests.simulation.scenario import OVERSTATER, Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

SEEDS = 12


class OverstatedCluster(SimulatedCluster):
    """A cluster that keeps why the lying worker was refused."""

    refusals: list[str]

    def noted(self, note: Note) -> None:
        """Keep the refusal."""
        super().noted(note)
        if f"worker {OVERSTATER} takes no part in the job" in note.text:
            self.refusals.append(note.text)


@pytest.mark.parametrize("message", ["Ready", "Description"])
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, SEEDS))]
)
def test_a_job_finishes_with_the_same_weights_beside_a_worker_with_a_huge_layout(
    seed: int, message: Literal["Ready", "Description"]
) -> None:
    usual = Scenario.hostile(seed)
    job = usual.jobs[0]
    job.plan = replace(job.plan, min_workers=2)  # so that an honest worker is there when the lie is found
    cluster = OverstatedCluster(seed, scenario=replace(usual, jobs=[job], overstates=message))
    cluster.refusals = []
    cluster.run()  # it checks the weights
    assert cluster.disk.jobs["job-0"].job.state == SUCCEEDED
    assert any(f"{MAX_ELEMENTS} elements, expected the " in each for each in cluster.refusals)
