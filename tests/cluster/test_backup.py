"""Backups of the queue of a real aggregator at work, and restores after which the jobs go on, to the same bits."""

from __future__ import annotations

import signal
import subprocess
import threading
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from aggregator.storage.job_queue import LARGEST_PAGE_JOBS, JobPage, JobQueue
from aggregator.storage.queue_check import check_queue
from protos import jobs_pb2 as jobs
from services.errors import ExitCode
from services.instrumentation import failpoints
from tests.support.cluster.bits import STEPS, Bits, bits
from tests.support.cluster.daemon import LIMIT_SECONDS, environment, eventually, tiermesh
from tests.support.cluster.fork_server import fork_server
from tests.support.cluster.harness import ENDED, Cluster

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

HEARTBEAT_SECONDS = 0.5


def back_up(cluster: Cluster, file: Path) -> None:
    done = tiermesh("queue", "backup", "--state-dir", cluster.folder / "aggregator-state", "-o", file)
    assert done.returncode == 0, done.stderr


def restore(cluster: Cluster, file: Path) -> str:
    done = tiermesh("queue", "restore", file, "--state-dir", cluster.folder / "aggregator-state")
    assert done.returncode == 0, done.stderr
    return done.stdout


def stored_jobs(file: Path) -> set[str]:
    found, page = set(), JobPage([], 0)
    with JobQueue(file) as queue:
        while page.next_place is not None:
            page = queue.page(page.next_place, LARGEST_PAGE_JOBS)
            found |= {job.id for job in page.jobs}
    return found


def log_of(cluster: Cluster, job: str) -> list[str]:
    return [line.text for line in cluster.stub.Logs(jobs.LogsRequest(job=job), timeout=LIMIT_SECONDS)]


def test_backups_amid_submits_have_every_job_acknowledged_before(tmp_path: Path, short_spec: str) -> None:
    with Cluster(tmp_path / "cluster", heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        acknowledged: list[str] = []
        over = threading.Event()

        def submit() -> None:
            while not over.is_set():
                acknowledged.append(cluster.submit(short_spec))

        submitting = threading.Thread(target=submit)
        submitting.start()
        try:
            for number in range(5):
                eventually(lambda least=number: len(acknowledged) > least, "a submit")
                before = set(acknowledged)
                back_up(cluster, tmp_path / f"backup-{number}")
                after = set(acknowledged)
                found = stored_jobs(tmp_path / f"backup-{number}")
                assert before <= found
                assert len(found - after) <= 1, "one more may be written and not acknowledged yet"
        finally:
            over.set()
            submitting.join()
        assert cluster.aggregator.process.poll() is None


@pytest.mark.parametrize(
    ("tiers", "lost_optimizer"),
    [
        pytest.param(2, False, id="2 tiers"),
        pytest.param(3, False, id="3 tiers"),
        pytest.param(3, True, id="3 tiers, optimizer restarted"),
    ],
)
def test_a_job_goes_on_from_its_newest_checkpoint_after_a_restore(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits, tiers: int, lost_optimizer: bool
) -> None:
    with Cluster(tmp_path, tiers=tiers, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait(job, lambda each: each.checkpoint_step >= 3, "a checkpoint")
        back_up(cluster, tmp_path / "backup")
        newest = cluster.wait(job, lambda each: each.checkpoint_step >= 6, "a later checkpoint")
        late = cluster.submit(gpt_spec)
        for _ in range(2):
            cluster.aggregator.kill()
            cluster.start_aggregator()
        cluster.wait_workers(1)
        cluster.aggregator.kill()
        had_ended = "succeeded: " in cluster.aggregator.log_text()
        if lost_optimizer:
            assert cluster.optimizer is not None
            cluster.optimizer.kill()
            cluster.start_optimizer()
        assert "the replaced queue is now" in restore(cluster, tmp_path / "backup")
        cluster.start_aggregator()
        assert cluster.job(job).step >= 3
        ended = cluster.finish(job)
        assert bits(ended) == undisturbed
        steps = [
            int(line.split("to step ")[1].split(",")[0])
            for line in log_of(cluster, job)
            if "the optimizer went back to step" in line
        ]
        assert all(step >= newest.checkpoint_step for step in steps)
        kept = tiers == 3 and not lost_optimizer
        assert bool(steps) != kept or had_ended, "an optimizer forgets a job whose end it hears of"
        known = [each.id for each in cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs]
        assert late not in known, "it was submitted after the backup"
        assert "this queue is an older copy" not in cluster.aggregator.log_text(), "its epoch was raised"


def test_a_job_that_ended_after_the_backup_ends_again_without_a_step(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    with Cluster(tmp_path, tiers=3, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 1)
        back_up(cluster, tmp_path / "backup")
        assert bits(cluster.finish(job)) == undisturbed
        steps = [line for line in log_of(cluster, job) if ", Loss: " in line]
        assert len(steps) == STEPS
        refused = tiermesh(
            "queue", "restore", tmp_path / "backup", "--state-dir", tmp_path / "aggregator-state"
        )
        assert (
            refused.returncode == ExitCode.NOT_YET
            and "a daemon uses it; stop the daemon first" in refused.stderr
        )
        cluster.aggregator.terminate()
        restore(cluster, tmp_path / "backup")
        cluster.start_aggregator()
        again = cluster.finish(job)
        assert bits(again) == undisturbed and again.step == STEPS
        assert [line for line in log_of(cluster, job) if ", Loss: " in line] == steps


# ---- kills ----


def run_killed(failpoint: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command that kills itself at a failpoint."""
    settings = {failpoints.VARIABLE: f"{failpoint}=kill@1"}
    with TemporaryFile() as output, TemporaryFile() as errors:
        command = fork_server("aggregator", environment()).start(
            "cli.main", [str(each) for each in words], settings, output, errors
        )
        command.stdin.close()
        code = command.wait(LIMIT_SECONDS)
        errors.seek(0)
        return subprocess.CompletedProcess(words, code, "", errors.read().decode())


@pytest.mark.parametrize("failpoint", ["queue.copy.mid", "queue.backup.copied", "queue.backup.after"])
def test_a_backup_that_is_killed_is_complete_or_absent(
    tmp_path: Path, failpoint: str, short_spec: str
) -> None:
    with Cluster(tmp_path / "cluster", heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        state, file = tmp_path / "cluster" / "aggregator-state", tmp_path / "backup"
        job = cluster.submit(short_spec)
        back_up(cluster, file)
        old = file.read_bytes()
        later = cluster.submit(short_spec)
        killed = run_killed(failpoint, "queue", "backup", "--state-dir", state, "--force", "-o", file)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        if failpoint == "queue.backup.after":
            assert stored_jobs(file) == {job, later}
        else:
            assert file.read_bytes() == old
        cluster.submit(short_spec)  # the queue is not locked
        done = tiermesh("queue", "backup", "--state-dir", state, "--force", "-o", file)
        assert done.returncode == 0, done.stderr
        assert check_queue(file, "backup").jobs == 3


RESTORE_FAILPOINTS = ["queue.copy.mid", "queue.restore.before", "queue.restore.kept", "queue.restore.after"]


@pytest.mark.parametrize("failpoint", RESTORE_FAILPOINTS)
def test_a_restore_that_is_killed_leaves_one_of_the_two_queues(
    tmp_path: Path, failpoint: str, short_spec: str
) -> None:
    with Cluster(tmp_path / "cluster", workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        state, file = tmp_path / "cluster" / "aggregator-state", tmp_path / "backup"
        job = cluster.submit(short_spec)
        back_up(cluster, file)
        later = cluster.submit(short_spec)
        cluster.aggregator.kill()
        killed = run_killed(failpoint, "queue", "restore", file, "--state-dir", state)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        cluster.start_aggregator()
        known = {each.id for each in cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs}
        assert known == ({job} if failpoint == "queue.restore.after" else {job, later})
        cluster.aggregator.kill()
        restore(cluster, file)
        assert not list(state.glob(".queue*"))
        cluster.start_aggregator()
        assert cluster.finish(job).state in ENDED
        known = {each.id for each in cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs}
        assert known == {job}
