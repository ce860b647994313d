"""Workers of a row are killed, frozen or join during a job, which ends in the bits of a job without a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import Bits, bits, deep_config, spec_of, split_config
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, eventually
from tests.support.cluster.harness import Cluster

STEPS = 10
BLOCKS_PER_STAGE = (1, 1, 1)
HEARTBEAT_SECONDS = 1.0


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> str:
    config = deep_config(corpus, 3, tied=True, project_name="faulty", max_steps=STEPS)
    return spec_of(tmp_path_factory.mktemp("faulty"), split_config(config, BLOCKS_PER_STAGE))


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Bits:
    folder = tmp_path_factory.mktemp("whole")
    config = deep_config(corpus, 3, tied=True, project_name="whole", max_steps=STEPS)
    with Cluster(folder, workers=1) as cluster:
        return bits(cluster.finish(cluster.submit(spec_of(folder, split_config(config, ())))))


def worker_of(cluster: Cluster, stage: int) -> Daemon:
    """Return the worker that has a stage."""

    def look() -> Daemon | None:
        for member in cluster.status().workers:
            if member.row and member.first_stage <= stage < member.first_stage + member.stages:
                return next(each for each in cluster.workers if each.name == member.name)
        return None

    found = eventually(look, f"a worker of stage {stage}")
    assert found is not None
    return found


def reported_steps(cluster: Cluster, job: str) -> list[int]:
    """Return the steps that the job's log reports, in order."""
    lines = cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)
    reported = [line.text for line in lines]
    return [int(text.partition(",")[0].removeprefix("Step: ")) for text in reported if ", Loss" in text]


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
@pytest.mark.parametrize("stage", range(len(BLOCKS_PER_STAGE)))
def test_a_killed_stage(tmp_path: Path, spec: str, expected: Bits, stage: int, spares: int) -> None:
    workers = len(BLOCKS_PER_STAGE) + spares
    with Cluster(
        tmp_path, tiers=3, workers=workers, heartbeat_seconds=HEARTBEAT_SECONDS, steps=STEPS - 1
    ) as cluster:
        cluster.wait_workers(workers)
        job = cluster.submit(spec)
        cluster.wait_step(job, 3)
        worker_of(cluster, stage).kill()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (expected, 1)
        assert reported_steps(cluster, job) == list(range(1, STEPS + 1)), "each step happens once"


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
def test_a_frozen_stage(tmp_path: Path, spec: str, expected: Bits, spares: int) -> None:
    workers = len(BLOCKS_PER_STAGE) + spares
    with Cluster(tmp_path, tiers=3, workers=workers, heartbeat_seconds=3.0, steps=STEPS - 1) as cluster:
        cluster.wait_workers(workers)
        job = cluster.submit(spec)
        cluster.wait_step(job, 3)
        frozen = worker_of(cluster, 1)
        frozen.freeze()
        cluster.aggregator.wait_log(f"worker {frozen.name} is gone: silent for")
        if spares:
            cluster.wait_step(job, STEPS - 1)
        frozen.thaw()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (expected, 1)
        assert reported_steps(cluster, job) == list(range(1, STEPS + 1)), "each step happens once"


@pytest.mark.long
def test_workers_that_join_take_over_stages(tmp_path: Path, spec: str, expected: Bits) -> None:
    with Cluster(tmp_path, tiers=2, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        job = cluster.submit(spec)
        for step in (2, 4):
            cluster.wait_step(job, step)
            cluster.start_worker(wait=False)
        assert bits(cluster.finish(job)) == expected


@pytest.mark.long
def test_all_workers_are_killed_and_restarted(tmp_path: Path, spec: str, expected: Bits) -> None:
    with Cluster(tmp_path, tiers=3, workers=3, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        job = cluster.submit(spec)
        cluster.wait_step(job, 3)
        for number, worker in enumerate(list(cluster.workers)):
            worker.kill()
            cluster.start_worker(name=f"other-{number}", wait=False)
        assert bits(cluster.finish(job)) == expected


@pytest.mark.long
@pytest.mark.parametrize("role", ["aggregator", "optimizer"])
def test_the_process_above_the_rows_is_killed(tmp_path: Path, spec: str, expected: Bits, role: str) -> None:
    with Cluster(tmp_path, tiers=3, workers=3, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        job = cluster.submit(spec)
        cluster.wait_step(job, 4)
        cluster.serving(role).kill()
        if role == "aggregator":
            cluster.start_aggregator()
        else:
            cluster.start_optimizer()
        assert bits(cluster.finish(job)) == expected


@pytest.mark.long
@pytest.mark.parametrize("spares", [0, 1])
def test_a_neighbour_that_sends_wrong_arrays_gets_another_row(
    tmp_path: Path, spec: str, expected: Bits, spares: int
) -> None:
    """Without a spare, the others share its stages."""
    with Cluster(
        tmp_path, heartbeat_seconds=HEARTBEAT_SECONDS, worker_module="tests.support.cluster.lying_stage"
    ) as cluster:
        for name in ("liar", "a", "b"):
            cluster.start_worker(name=name)
        cluster.wait_workers(3)
        job = cluster.submit(spec)
        for number in range(spares):
            cluster.wait(job, lambda each: each.state == jobs.RUNNING, "its start")
            cluster.start_worker(name=f"spare-{number}")
        ended = cluster.finish(job)
        assert bits(ended) == expected
        lines = cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)
        blamed = [line.text for line in lines if "can't exchange arrays with worker" in line.text]
        assert blamed and all("can't exchange arrays with worker liar: " in text for text in blamed), blamed
