"""Two aggregators share one state dir. One leads, and the job's bits don't depend on which one or when."""

from __future__ import annotations

import sqlite3
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest

from protos import jobs_pb2 as jobs
from tests.cluster.test_kills import reported_steps
from tests.support.cluster.bits import CHECKPOINT_EVERY, STEPS, Bits, bits, deep_config, spec_of, split_config
from tests.support.cluster.daemon import LIMIT_SECONDS, Daemon, eventually, tiermesh
from tests.support.cluster.harness import Cluster

NOBODY = "127.0.0.1:1"
HEARTBEAT_SECONDS = 1.0


def leads(aggregator: Daemon) -> bool:
    """Return whether the daemon's metrics say that it leads."""
    return aggregator.metric("tiermesh_leader") == 1


def one_leader(*aggregators: Daemon) -> Daemon:
    """Wait until exactly one aggregator leads, and return it."""

    def look() -> list[Daemon]:
        leading = [each for each in aggregators if leads(each)]
        assert len(leading) < 2
        return leading

    (leader,) = eventually(look, "a leader")
    return leader


class Pair(Cluster):
    """A cluster with a standby aggregator. Its worker knows both addresses, and a third that nothing serves."""

    def __init__(self, folder: Path, tiers: int, shards: int = 0) -> None:
        super().__init__(
            folder,
            tiers=tiers,
            shards=shards,
            aggregator_options=("--standby",),
            heartbeat_seconds=HEARTBEAT_SECONDS,
            steps=STEPS - 1,
        )

    def __enter__(self) -> Pair:
        super().__enter__()
        try:
            self.first = one_leader(self.aggregator)
            self.second = self.start_standby()
            self.second.wait_log("the leader is aggregator (epoch 1)")
            eventually(lambda: self.first.metric("tiermesh_standbys") == 1, "the standby to be known")
            self.add_worker()
        except BaseException:
            self.close()
            raise
        return self

    def add_worker(self) -> None:
        """Start a worker that knows all addresses."""
        self.start_worker(aggregator=f"{NOBODY},{self.first.address},{self.second.address}")

    def freeze_first(self) -> None:
        """Freeze the leader between two writes. During a write it has the lock, which would prevent a takeover."""
        queue = self.folder / "aggregator-state" / "queue.sqlite"

        def frozen() -> bool:
            self.first.freeze()
            with closing(sqlite3.connect(queue, timeout=1.0, isolation_level=None)) as other:
                try:
                    other.execute("BEGIN IMMEDIATE")
                except sqlite3.OperationalError:
                    self.first.thaw()
                    return False
                return True

        eventually(frozen, "a moment between two writes")

    def taken_over(self) -> None:
        """Wait until the standby leads."""
        self.second.wait_log("takes over with epoch 2")
        self.switch_to(self.second)


def history_of(cluster: Cluster, job: str) -> list[int]:
    """Return the steps that a job's history has rows of, in its order."""
    parts = cluster.stub.Metrics(jobs.MetricsRequest(job=job, columns=["step"]), timeout=LIMIT_SECONDS)
    return [int(each) for part in parts for each in np.frombuffer(part.columns[0].values, "<f8")]


@pytest.mark.parametrize(
    ("tiers", "shards"),
    [pytest.param(2, 0, marks=pytest.mark.long), pytest.param(2, 2, marks=pytest.mark.long), (3, 0)],
)
def test_a_leader_that_is_killed(
    tmp_path: Path, tiers: int, shards: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Pair(tmp_path, tiers, shards) as pair:
        job = pair.submit(gpt_spec)
        pair.wait_step(job, CHECKPOINT_EVERY + 2)
        assert (leads(pair.first), leads(pair.second)) == (True, False)
        pair.first.kill()
        pair.taken_over()
        ended = pair.finish(job)
        assert bits(ended) == undisturbed
        assert ended.generation == (1 if tiers == 3 else 2)
        assert history_of(pair, job) == list(range(1, STEPS + 1)), "the steps of both leaders"
        status = pair.status()
        assert (status.leader, status.epoch, len(status.standbys)) == ("standby", 2, 0)
        assert leads(pair.second)
        assert f"nothing listens at {NOBODY}" in pair.workers[0].log_text()


@pytest.mark.long
@pytest.mark.parametrize("tiers", [2, 3])
def test_a_leader_that_is_killed_amid_a_pipeline(tmp_path: Path, tiers: int, corpus: Path) -> None:
    config = deep_config(corpus, 2, tied=True)
    with Cluster(tmp_path / "whole", workers=1) as whole:
        expected = bits(whole.finish(whole.submit(spec_of(tmp_path, split_config(config, ())))))
    with Pair(tmp_path / "split", tiers) as pair:
        pair.add_worker()
        pair.wait_workers(2)
        job = pair.submit(spec_of(tmp_path, split_config(config, (1, 1))))
        pair.wait_step(job, CHECKPOINT_EVERY + 2)
        stages = {each.name: each.first_stage for each in pair.status().workers if each.row}
        assert sorted(stages.values()) == [0, 1]
        pair.first.kill()
        pair.taken_over()
        assert bits(pair.finish(job)) == expected
        pair.wait_workers(2)
        assert {each.name for each in pair.status().workers} == set(stages)


@pytest.mark.parametrize("tiers", [2, 3])
@pytest.mark.long
def test_a_leader_that_wakes_up_late_has_no_effect(
    tmp_path: Path, tiers: int, gpt_spec: str, undisturbed: Bits
) -> None:
    with Pair(tmp_path, tiers) as pair:
        job = pair.submit(gpt_spec)
        pair.wait_step(job, 2)
        pair.freeze_first()
        pair.taken_over()
        before = len(pair.first.log_text())
        pair.wait_step(job, CHECKPOINT_EVERY + 1)
        pair.first.thaw()
        pair.first.wait_log("this aggregator is now a standby")
        woken = pair.first.log_text()[before:].partition("this aggregator is now a standby")[0]
        assert "has taken over from epoch 1" in woken
        assert "Step: " not in woken and "checkpoint" not in woken and "ERROR" not in woken, woken
        assert bits(pair.finish(job)) == undisturbed
        reported = reported_steps(pair, job)
        assert reported[-1] == STEPS
        assert history_of(pair, job) == list(range(1, STEPS + 1))
        assert sum(reported[at] <= reported[at - 1] for at in range(1, len(reported))) <= 1, (
            "one takeover, one way back"
        )
        pair.first.wait_log("the leader is standby (epoch 2)")
        eventually(lambda: [each.name for each in pair.status().standbys] == ["aggregator"], "its return")
        assert (leads(pair.first), leads(pair.second)) == (False, True)


def test_a_malformed_address_list_is_refused() -> None:
    done = tiermesh("worker", "--aggregator", "a:1,,b:1")
    assert done.returncode == 2
    assert "--aggregator 'a:1,,b:1': part 2 is empty; expected HOST:PORT" in done.stderr.splitlines()[-1]


@pytest.mark.long
def test_one_of_two_aggregators_started_together_leads_and_hands_over_at_its_end(tmp_path: Path) -> None:
    """Check that the takeover comes long before the standby's heartbeat limit."""
    options = ("--state-dir", tmp_path / "state", "--standby", "--heartbeat-seconds", 20.0)
    pair = [Daemon("aggregator", name, tmp_path, *options) for name in ("left", "right")]
    with ExitStack() as stack:
        for each in pair:
            stack.callback(each.close)
        leader = one_leader(*(each.ready() for each in pair))
        (other,) = (each for each in pair if each is not leader)
        other.wait_log(f"the leader is {leader.name} (epoch 1)")
        asked = tiermesh("jobs", "--aggregator", other.address)
        assert asked.returncode == 1
        assert f"this aggregator is a standby; the leader is {leader.name} (epoch 1)" in asked.stderr
        both = ("--aggregator", f"{NOBODY},{other.address},{leader.address}")
        shown = tiermesh("status", *both)
        assert f"aggregator {leader.name} at {leader.address}: 2-tier, epoch 1" in shown.stdout
        assert leader.terminate() == 0
        other.wait_log(f"takes over with epoch 2: {leader.name} (epoch 1) has resigned")
        eventually(lambda: leads(other), "the other one to lead")
        assert tiermesh("jobs", *both).returncode == 0


@pytest.mark.long
def test_no_aggregator_leads_while_storage_is_locked(tmp_path: Path) -> None:
    with Pair(tmp_path, 2) as pair:
        queue = tmp_path / "aggregator-state" / "queue.sqlite"
        with closing(sqlite3.connect(queue, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            pair.first.wait_log("no longer leads")
            eventually(lambda: not leads(pair.first), "it to stand by")
            assert not leads(pair.second)
        one_leader(pair.first, pair.second)


@pytest.mark.long
def test_an_aggregator_without_standby_does_not_disturb_a_leader(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    with Pair(tmp_path, 2) as pair:
        job = pair.submit(gpt_spec)
        pair.wait_step(job, 2)
        state = ("--state-dir", tmp_path / "aggregator-state")
        third = pair._start("aggregator", "third", *state, "--heartbeat-seconds", HEARTBEAT_SECONDS)
        assert third.ended() == 75
        assert "another aggregator leads on it" in third.log_text()
        assert bits(pair.finish(job)) == undisturbed
        assert pair.status().epoch == 1
