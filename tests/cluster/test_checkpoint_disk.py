"""A job whose checkpoint folder can't be written for a while continues, reports it, and later writes again."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.checkpoints.read import (
    list_checkpoints,
    read_checkpoint,
)
from tests.support.cluster.harness import Cluster


@pytest.mark.long
@pytest.mark.parametrize(
    ("tiers", "shards"),
    [(2, 0), (2, 2), (3, 0)],
)
def test_a_job_continues_while_its_folder_is_not_writable(
    tmp_path: Path, tiers: int, shards: int, long_spec: str
) -> None:
    with Cluster(tmp_path, tiers=tiers, shards=shards, workers=1) as cluster:
        job = cluster.submit(long_spec)
        good = cluster.wait(job, lambda each: each.checkpoint_step > 0, "a checkpoint").checkpoint_step
        folder, owner = cluster.checkpoints(job), cluster.optimizer or cluster.aggregator
        away = folder.with_name("away")
        owner.freeze()  # or it might make the folder again in between
        folder.rename(away)
        folder.write_text("in the place of the folder, so that not even root can write there")
        owner.thaw()
        missed = cluster.wait(job, lambda each: "not written" in each.detail, "a checkpoint missed")
        assert "no checkpoint" in missed.detail and str(folder) in missed.detail
        assert (missed.generation, missed.checkpoint_step >= good) == (1, True)
        cluster.wait_step(job, missed.step + 4)
        intact = [read_checkpoint(each).step for each in list_checkpoints(away)]
        assert good in intact
        owner.freeze()
        folder.unlink()
        away.rename(folder)
        owner.thaw()
        later = cluster.wait(job, lambda each: each.checkpoint_step > missed.step, "a checkpoint again")
        assert (later.generation, later.detail) == (1, "")
        assert read_checkpoint(Path(later.checkpoint)).step == later.checkpoint_step
        assert f"job {job}: no checkpoint of step" in owner.log_text()
