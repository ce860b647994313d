"""Copies of a state dir, as a careless clone of a host makes them: no wrong bits, and no endless wait."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cluster.bits import Bits, bits
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import Cluster

HEARTBEAT_SECONDS = 0.5


@pytest.mark.long
def test_optimizers_on_copies_of_one_state_dir_take_turns_to_the_same_bits(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    """The address of the optimizer changes hands while both live, as that of two hosts with one name may."""
    with Cluster(tmp_path, tiers=3, workers=1, heartbeat_seconds=HEARTBEAT_SECONDS) as cluster:
        original = cluster.optimizer
        assert original is not None
        job = cluster.submit(gpt_spec)
        cluster.wait_step(job, 2)
        cluster.workers[0].kill()  # the job waits until the addresses are changed
        cluster.checkpoint(job, 0)  # from which the copy goes on
        original.freeze()  # or a file of another checkpoint might get its name amid the copying
        shutil.copytree(tmp_path / "optimizer-state", tmp_path / "copy")
        original.thaw()
        twin = cluster._start("optimizer", "twin", "--state-dir", tmp_path / "copy").ready()
        cluster.to_optimizer.aim(twin)
        cluster.to_optimizer.cut()
        eventually(lambda: cluster.job(job).generation == 2, "the job to go on at the copy")
        cluster.to_optimizer.aim(original)
        cluster.to_optimizer.cut()
        eventually(lambda: cluster.job(job).generation == 3, "the job to go on at the original")
        cluster.start_worker()
        assert bits(cluster.finish(job)) == undisturbed
