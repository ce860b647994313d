"""Faulty hardware: micro-batches are computed twice, and the faulty worker is excluded before the COMMIT.

lying_worker.py says which worker is faulty. tally_worker.py says why the final weights show every wrong result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos import jobs_pb2 as jobs
from tests.cluster.test_tally import counted
from tests.support.cluster.bits import Bits, bits, sized_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.harness import Cluster
from tests.support.cluster.lying_worker import FIRST_LIE
from tests.support.cluster.tally_worker import TENSOR_ELEMENTS, TENSORS, tallied

STEPS, MICRO_BATCHES = 20, 8
MODULE = "tests.support.cluster.lying_worker"


def spec(folder: Path, workers: int, **training: Any) -> str:
    """Return a job that counts, starts with this many workers, and verifies each micro-batch."""
    settings = {
        "max_steps": STEPS,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "model_save_interval": 4,
        "min_workers": workers,
        "verify_fraction": 1.0,
        "optimizer": {"type": "SGD", "lr": 1.0},
        **training,
    }
    return spec_of(folder, sized_config(TENSOR_ELEMENTS, TENSORS, **settings))


def job_log(cluster: Cluster, job: str) -> list[str]:
    """Return the lines of the job's log."""
    return [line.text for line in cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)]


def found_faulty(cluster: Cluster, job: str) -> jobs.Exclusion:
    """Wait until a worker is excluded."""
    found = cluster.wait(job, lambda each: bool(each.excluded), "a worker is found faulty")
    (exclusion,) = found.excluded
    return exclusion


def check_counted_once(ended: jobs.Job) -> None:
    """Check that no wrong result is in the weights and that nothing is lost."""
    np.testing.assert_array_equal(counted(ended), tallied(STEPS, STEPS, MICRO_BATCHES))


@pytest.mark.parametrize(
    ("tiers", "shards", "options", "on_faulty"),
    [
        (2, 0, (), "go_back"),
        pytest.param(3, 0, (), "go_back", marks=pytest.mark.long),
        pytest.param(3, 0, ("--no-shared-memory",), "go_on", marks=pytest.mark.long),
        pytest.param(2, 2, (), "go_on", marks=pytest.mark.long),
    ],
)
def test_one_faulty_worker_of_three_is_excluded(
    tmp_path: Path, tiers: int, shards: int, options: tuple[str, ...], on_faulty: str
) -> None:
    with Cluster(
        tmp_path / "cluster", tiers=tiers, workers=2, shards=shards, options=options, worker_module=MODULE
    ) as cluster:
        liar = cluster.start_worker(name="steady")
        cluster.wait_workers(3)
        job = cluster.submit(spec(tmp_path, workers=3, on_faulty=on_faulty))
        exclusion = found_faulty(cluster, job)
        assert (exclusion.worker, exclusion.step) == ("steady", FIRST_LIE), "in the step of its first lie"
        assert exclusion.trusted_step == FIRST_LIE - 1
        assert f"faulty: step {FIRST_LIE + 1}, micro-batch " in exclusion.reason
        assert "worker-1 0x" in exclusion.reason and "worker-2 0x" in exclusion.reason
        assert cluster.aggregator.metric("tiermesh_verifications_total", outcome="faulty") == 1
        assert cluster.aggregator.metric("tiermesh_verifications_total", outcome="passed") > MICRO_BATCHES
        # The exclusion applies to the name, also after a restart.
        cluster.aggregator.kill()
        liar.kill()
        cluster.start_aggregator()
        again = cluster.start_worker(name="steady")
        again.wait_log("with another --name")
        cluster.wait_workers(1, "refused")
        cluster.start_worker(name="worker-3")
        ended = cluster.finish(job)
        check_counted_once(ended)
        assert [each.worker for each in ended.excluded] == ["steady"]
        assert any("worker steady takes no part in the job: faulty" in line for line in job_log(cluster, job))


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_unverified_wrong_results_are_rolled_back(tmp_path: Path, tiers: int) -> None:
    with Cluster(tmp_path / "cluster", tiers=tiers, workers=2, worker_module=MODULE) as cluster:
        cluster.start_worker(name="steady")
        cluster.wait_workers(3)
        job = cluster.submit(spec(tmp_path, workers=3, verify_fraction=0.25, model_save_interval=1))
        exclusion = found_faulty(cluster, job)
        assert exclusion.trusted_step < FIRST_LIE <= exclusion.step
        cluster.start_worker(name="worker-3")
        check_counted_once(cluster.finish(job))
        (back,) = [
            line for line in job_log(cluster, job) if line.startswith("the optimizer went back to step ")
        ]
        assert int(back.split()[6].rstrip(",")) <= exclusion.trusted_step and back.endswith("generation 2")


@pytest.mark.long
def test_an_inconsistent_worker_of_two_is_excluded(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster", workers=1, worker_module=MODULE) as cluster:
        cluster.start_worker(name="fickle")
        job = cluster.submit(spec(tmp_path, workers=2))
        assert found_faulty(cluster, job).worker == "fickle"
        cluster.start_worker(name="worker-3")
        check_counted_once(cluster.finish(job))


def test_a_new_job_is_not_verified_by_one_worker_alone(tmp_path: Path, gpt_spec: str) -> None:
    checked = gpt_spec.replace('"verify_fraction":0.0', '"verify_fraction":0.5')
    with Cluster(tmp_path, workers=0) as cluster:
        with pytest.raises(grpc.RpcError) as caught:
            cluster.submit(checked)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        text = "training_config.min_workers: 1 given with verify_fraction 0.5, expected at least 2"
        assert text in caught.value.details()


@pytest.mark.long
def test_a_checker_killed_in_the_middle_of_a_check(tmp_path: Path) -> None:
    armed = {"worker": "worker.check=kill@9"}
    with Cluster(
        tmp_path / "cluster", tiers=3, worker_module=MODULE, failpoints=lambda role: armed.get(role, "")
    ) as cluster:
        doomed = cluster.start_worker(name="worker-1")
        armed.clear()
        cluster.start_worker(name="worker-2")
        job = cluster.submit(spec(tmp_path, workers=2))
        doomed.ended()
        cluster.start_worker(name="worker-3")
        ended = cluster.finish(job)
        check_counted_once(ended)
        assert not ended.excluded


@pytest.mark.long
def test_bits_do_not_depend_on_verification(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    checked = gpt_spec.replace('"verify_fraction":0.0', '"verify_fraction":0.5')
    checked = checked.replace('"min_workers":1', '"min_workers":2')
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        job = cluster.submit(checked)
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        assert not ended.excluded
        assert cluster.aggregator.metric("tiermesh_verifications_total", outcome="passed") > 0
