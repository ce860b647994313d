"""An optimizer, a shard and a worker obey one cluster. A queue put back from a backup goes on above every epoch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from aggregator.core.succession import SKIPPED_EPOCHS
from services.errors import ExitCode
from tests.support.cluster.bits import Bits, bits
from tests.support.cluster.daemon import Daemon, eventually, tiermesh
from tests.support.cluster.harness import Cluster

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

HEARTBEAT_SECONDS = 1.0


def stranger(cluster: Cluster, *link: object) -> Daemon:
    """Start an aggregator of another cluster, which is told to use this cluster's optimizer or shard."""
    state = ("--state-dir", cluster.folder / "stranger-state", "--heartbeat-seconds", HEARTBEAT_SECONDS)
    return cluster._start("aggregator", "stranger", *state, *link).ready()


def show(state_dir: Path) -> str:
    """Return the identity in a state dir that no daemon uses."""
    done = tiermesh("cluster", "show", "--state-dir", str(state_dir))
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]


def test_an_optimizer_obeys_one_cluster_until_it_adopts_another(
    tmp_path: Path, gpt_spec: str, short_spec: str, undisturbed: Bits
) -> None:
    state = tmp_path / "optimizer-state"
    with Cluster(tmp_path, tiers=3, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        assert cluster.optimizer is not None
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        link = ("--optimizer", cluster.to_optimizer.address)
        other = stranger(cluster, *link)
        other.wait_log("aggregator stranger belongs to cluster ")
        assert "/optimizer-state); give it another optimizer" in other.log_text()
        ended = cluster.finish(job)
        assert (bits(ended), ended.generation) == (undisturbed, 1), "the job was never thrown back"

        refused = tiermesh("cluster", "adopt", "0123456789abcdef", "--state-dir", str(state))
        assert (
            refused.returncode == ExitCode.NOT_YET
            and "a daemon uses it; stop the daemon first" in refused.stderr
        )
        own = show_running(other)
        cluster.aggregator.terminate()
        cluster.optimizer.terminate()
        done = tiermesh("cluster", "adopt", own, "--state-dir", str(state))
        assert done.returncode == 0, done.stderr
        assert show(state) == own
        cluster.start_optimizer()
        cluster.optimizer.wait_log("aggregator stranger: connected")
        cluster.switch_to(other)
        cluster.start_worker("--state-dir", tmp_path / "stranger-workers", aggregator=other.address)
        cluster.finish(cluster.submit(short_spec))


@pytest.mark.parametrize("shards", [0, 2])
def test_aggregators_on_copies_of_one_state_dir_do_not_take_turns(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits, shards: int
) -> None:
    """The copy takes over under its higher epoch, and the original waits, also restarted, with the copy's epoch."""
    tiers = 2 if shards else 3
    with Cluster(
        tmp_path, tiers=tiers, shards=shards, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS
    ) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        copy = tmp_path / "copy"
        cluster.aggregator.terminate()
        shutil.copytree(tmp_path / "aggregator-state", copy)
        link = (
            ("--shards", ",".join(relay.address for relay in cluster.to_shards))
            if shards
            else ("--optimizer", cluster.to_optimizer.address)
        )
        twin = cluster._start(
            "aggregator", "twin", "--state-dir", copy, "--heartbeat-seconds", HEARTBEAT_SECONDS, *link
        ).ready()
        obeyed = "shards are connected" if shards else "optimizer optimizer: connected"
        twin.wait_log(obeyed)
        original = cluster.start_aggregator()
        original.wait_log("one runs on a copy of the other's --state-dir; stop one, or restart this one")
        assert original.log_text().count(obeyed) == 1, "only in the log of its first start"
        assert twin.log_text().count(obeyed) == 1
        twin.terminate()
        eventually(lambda: original.log_text().count(obeyed) == 2, "the original to lead again")
        assert bits(cluster.finish(job)) == undisturbed


def show_running(aggregator: Daemon) -> str:
    """Return the identity of a running aggregator, from the command that its optimizer's refusal names."""
    return aggregator.log_text().partition("`tiermesh cluster adopt ")[2].split()[0]


def test_a_shard_obeys_one_cluster(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, tiers=2, shards=2, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        other = stranger(cluster, "--shards", cluster.to_shards[0].address)
        other.wait_log("aggregator stranger belongs to cluster ")
        assert "/shard-0-state); give it another shard" in other.log_text()
        assert bits(cluster.finish(job)) == undisturbed


def test_a_restored_queue_goes_on_above_every_epoch_that_was_obeyed(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    queue = tmp_path / "aggregator-state" / "queue.sqlite"
    with Cluster(tmp_path, tiers=3, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        assert cluster.optimizer is not None
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 1)
        cluster.aggregator.terminate()  # a kill may leave a part of the queue in its journal
        shutil.copy(queue, tmp_path / "backup.sqlite")
        for _ in range(3):
            cluster.start_aggregator()
            cluster.aggregator.kill()
        cluster.start_aggregator()  # epoch 5
        cluster.optimizer.wait_log("connected, epoch 5")
        cluster.workers[0].wait_log("epoch 5")
        cluster.aggregator.terminate()
        shutil.copy(tmp_path / "backup.sqlite", queue)
        cluster.start_aggregator()  # epoch 2
        cluster.aggregator.wait_log("this queue is an older copy; it goes on above that epoch")
        assert bits(cluster.finish(job)) == undisturbed
        assert cluster.status().epoch - 6 in SKIPPED_EPOCHS


def test_workers_of_a_new_queue_are_told_what_to_do(tmp_path: Path, short_spec: str) -> None:
    with Cluster(tmp_path, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        worker = cluster.workers[0]
        worker.wait_log("connected to aggregator")
        cluster.aggregator.kill()
        shutil.rmtree(tmp_path / "aggregator-state")
        cluster.start_aggregator()
        worker.wait_log(", or stop the worker and run ")
        assert "/aggregator-state); give it its own" in worker.log_text()
        assert worker.terminate() == 0
        own = worker.log_text().partition("`tiermesh cluster adopt ")[2].split()[0]
        assert tiermesh("cluster", "adopt", own, "--state-dir", str(tmp_path / "workers")).returncode == 0
        cluster.start_worker()
        cluster.finish(cluster.submit(short_spec))


def test_a_state_dir_without_an_identity_is_refused(tmp_path: Path) -> None:
    for arguments in (("show",), ("adopt", "0123456789abcdef")):
        done = tiermesh("cluster", *arguments, "--state-dir", str(tmp_path))
        assert done.returncode == 2
        assert "has no queue and no file `cluster`" in done.stderr
    done = tiermesh("cluster", "adopt", "nonsense", "--state-dir", str(tmp_path))
    assert done.returncode == 2 and "16 hexadecimal digits" in done.stderr
