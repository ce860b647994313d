"""Processes of users join workers of a real cluster, and their job is as exact and as elastic as any."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from protos import jobs_pb2 as jobs
from services.config.job import JobConfig
from services.config.job_parts import WireConfig
from services.config.models import ExternalConfig, LinearRegressionConfig
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, eventually
from tests.support.cluster.harness import Cluster

CONFIG = JobConfig(
    seed=3,
    steps=4,
    batch_size=8,
    validation_batches=3,
    evaluate_every=2,
    num_workers=2,
    gradient_accumulation_steps=3,
    checkpoint_every=2,
    model=ExternalConfig(),
)


class Joins:
    """The external workers of a cluster, and the processes that join them.

    Args:
        cluster: the cluster.
        sockets: folder of their sockets; its path is short.
    """

    def __init__(self, cluster: Cluster, sockets: Path) -> None:
        self.cluster = cluster
        self._sockets = sockets
        self.processes: list[subprocess.Popen[str]] = []

    def start_worker(self, *options: object) -> Daemon:
        """Start an external worker, with a socket named after it."""
        number = len(self.cluster.workers) + 1
        socket = self._sockets / f"worker-{number}"
        return self.cluster.start_worker("--external", "--socket", socket, *options)

    def join(self, job: str, worker: Daemon, *options: object) -> subprocess.Popen[str]:
        """Start a process that joins a worker."""
        command = [sys.executable, "-m", "tests.support.external_process", self._sockets / worker.name, job]
        process = subprocess.Popen(
            [*map(str, command), *map(str, options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={"OPENBLAS_NUM_THREADS": "1", "PATH": "/usr/bin"},
        )
        self.processes.append(process)
        return process

    def start(self, job: str, number: int) -> list[subprocess.Popen[str]]:
        """Start workers, and a process that joins each."""
        return [self.join(job, self.start_worker()) for _ in range(number)]


@pytest.fixture
def make_joins(tmp_path: Path) -> Iterator[Callable[..., Joins]]:
    made: list[Joins] = []
    folder = Path(tempfile.mkdtemp(prefix="tm-"))

    def make(**options: Any) -> Joins:
        cluster = Cluster(tmp_path / str(len(made)), **options)
        sockets = folder / str(len(made))
        sockets.mkdir()
        made.append(Joins(cluster.__enter__(), sockets))
        return made[-1]

    yield make
    for each in made:
        for process in each.processes:
            process.kill()
            process.communicate()
        each.cluster.close()
    shutil.rmtree(folder)


def end_of(process: subprocess.Popen[str]) -> str:
    """Wait for a process's end, and return what it has printed."""
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    return output.strip()


def log_of(joins: Joins, job: str) -> str:
    """Return a job's log."""
    request = jobs.LogsRequest(job=job)
    return "\n".join(line.text for line in joins.cluster.stub.Logs(request, timeout=LIMIT_SECONDS))


def test_the_same_bits_with_any_number_of_processes(make_joins: Callable[..., Joins]) -> None:
    """Evaluations too; and the processes hear that the job has succeeded."""
    found = {}
    for number, tiers in ((1, 2), (3, 3)):
        joins = make_joins(tiers=tiers)
        job = joins.cluster.submit(CONFIG.to_json())
        processes = joins.start(job, number)
        ended = joins.cluster.finish(job)
        assert [end_of(each) for each in processes] == ["finished"] * number
        found[number] = (ended.model_sha256, ended.loss, ended.validation_loss)
    assert found[1] == found[3]
    assert found[1][2] > 0


def with_config(**changes: Any) -> str:
    """Return the job with some changes."""
    return JobConfig.model_validate({**CONFIG.model_dump(), **changes}).to_json()


@pytest.mark.long
def test_the_same_bits_over_bfloat16_and_with_a_process_killed_amid_a_lease(
    make_joins: Callable[..., Joins],
) -> None:
    """Its lease is another's at once, and it may be joined again."""
    spec = with_config(steps=6, wire_dtype=WireConfig(weights="bfloat16").model_dump())
    joins = make_joins()
    alone = joins.cluster.submit(spec)
    joins.start(alone, 1)
    expected = joins.cluster.finish(alone).model_sha256
    job = joins.cluster.submit(JobConfig.from_json(spec).model_copy(update={"min_workers": 2}).to_json())
    first, second = (joins.start_worker() for _ in range(2))
    killed = joins.join(job, first, "--fault", "killed")
    other = joins.join(job, second)
    assert killed.wait(LIMIT_SECONDS) == 1
    again = joins.join(job, first)
    ended = joins.cluster.finish(job)
    assert ended.model_sha256 == expected
    assert end_of(other) == end_of(again) == "finished"
    log = log_of(joins, job)
    assert "it has ended" in log and "compute process died" not in log


@pytest.mark.long
def test_a_job_goes_on_from_a_checkpoint_with_other_processes(make_joins: Callable[..., Joins]) -> None:
    joins = make_joins(tiers=3)
    whole = joins.cluster.submit(with_config(steps=6))
    joins.start(whole, 1)
    expected = joins.cluster.finish(whole).model_sha256
    half = joins.cluster.submit(with_config(steps=3))
    joins.start(half, 1)
    joins.cluster.finish(half)
    request = jobs.ContinueRequest(job=half, steps=6)
    job = joins.cluster.stub.Continue(request, timeout=LIMIT_SECONDS).id
    for file in (joins.cluster.folder / "aggregator-state" / "files").iterdir():
        file.unlink()  # as it is when no job has needed the layout for an hour
    other = end_of(joins.join(job, joins.start_worker(), "--hidden", 20))
    assert other.startswith("refused: parameter first.weight: [20, 8] in this process, the job's is [16, 8]")
    assert "layout hash" in (log := log_of(joins, job)), log
    joins.start(job, 2)
    assert joins.cluster.finish(job).model_sha256 == expected


def test_who_does_not_fit_is_refused_by_name(make_joins: Callable[..., Joins]) -> None:
    """Nothing of the job is lost by it, and the others go on."""
    joins = make_joins()
    cluster = joins.cluster
    job = cluster.submit(with_config(steps=1_000_000))
    plain = cluster.start_worker(name="plain")
    first = joins.start_worker()
    fine = joins.join(job, first)
    cluster.wait_step(job, 1)
    assert "has joined" in end_of(joins.join(job, first)), "one process at a time"
    worker = joins.start_worker()
    shape = end_of(joins.join(job, worker, "--hidden", 20))
    assert shape.startswith("refused: parameter first.weight: [20, 8] in this process, the job's is [16, 8]")
    code = end_of(joins.join(job, worker, "--fingerprint", "code 2"))
    assert code.startswith("refused: fingerprint differs: fingerprint is 'code 2', the job's is 'code 1'")
    bits = end_of(joins.join(job, worker, "--fault", "other bits"))
    assert "other bits when it computes a lease again" in bits
    unknown = end_of(joins.join("no-such-job", worker))
    assert unknown.startswith("refused: job no-such-job: not queued, running or paused")
    foreign = joins.start_worker("--allow-user", "65533")
    assert end_of(joins.join(job, foreign)).startswith("refused: user 0: may not join")
    assert {each.name: each.job for each in cluster.status().workers}[plain.name] == ""
    cluster.stub.Cancel(jobs.CancelRequest(job=job), timeout=LIMIT_SECONDS)
    assert end_of(fine).startswith("refused: ")
    assert f"worker {worker.name} takes no part in the job" in log_of(joins, job)


def test_an_exception_is_in_the_jobs_log_and_twice_the_same_ends_the_job(
    make_joins: Callable[..., Joins],
) -> None:
    joins = make_joins()
    job = joins.cluster.submit(CONFIG.to_json())
    worker = joins.start_worker()
    assert "failed: the user's loop failed" in end_of(joins.join(job, worker, "--fault", "an exception"))
    assert "ValueError: the user's loop failed" in log_of(joins, job)
    joins.join(job, joins.start_worker(), "--fault", "an exception")
    ended = joins.cluster.wait(job, lambda each: each.state == jobs.FAILED, "its failure")
    assert "failed on two workers" in ended.detail and "ValueError: the user's loop failed" in ended.detail


@pytest.mark.long
def test_a_faulty_process_is_found_by_another(make_joins: Callable[..., Joins]) -> None:
    joins = make_joins()
    job = joins.cluster.submit(with_config(verify_fraction=0.5, min_workers=2))
    processes = joins.start(job, 2)
    joins.cluster.finish(job)
    assert [end_of(each) for each in processes] == ["finished"] * 2


@pytest.mark.long
def test_an_own_model_and_an_external_job_run_at_once(make_joins: Callable[..., Joins]) -> None:
    """Paused, it keeps its process; a worker that stops tells its process."""
    joins = make_joins(steps=1)
    cluster = joins.cluster
    plain = cluster.start_worker(name="plain")
    own = cluster.submit(
        JobConfig(steps=3, batch_size=8, validation_batch_size=8, model=LinearRegressionConfig()).to_json()
    )
    job = cluster.submit(CONFIG.to_json())
    worker = joins.start_worker()
    process = joins.join(job, worker)
    cluster.wait_step(job, 1)
    cluster.wait_step(own, 1)
    assert {each.name: each.job for each in cluster.status().workers} == {plain.name: own, worker.name: job}
    cluster.stub.Pause(jobs.JobRequest(job=job), timeout=LIMIT_SECONDS)
    cluster.allow_steps(2)
    eventually(lambda: cluster.job(job).state == jobs.PAUSED, "the pause")
    cluster.stub.Resume(jobs.JobRequest(job=job), timeout=LIMIT_SECONDS)
    cluster.wait_step(job, 2)
    assert worker.terminate() == 0
    assert end_of(process) == "refused: the worker stops; join again when it runs"
    cluster.finish(own)
