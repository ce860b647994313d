"""A shard that dies of a fault again and again, with the tensors of one job, ends that job."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from aggregator.core.setting_aside import MOST_CRASHES
from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import Bits, bits
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import ENDED, Cluster

pytestmark = pytest.mark.long


def hits(cluster: Cluster, failpoint: str) -> int:
    """Return how many processes have hung at a failpoint."""
    log = cluster.folder / "failpoints.log"
    lines = log.read_text().splitlines() if log.exists() else []
    return sum(line.startswith(f"{failpoint} ") and line.endswith(" hang") for line in lines)


def die_again_and_again(cluster: Cluster, job: str, number: int, times: int) -> None:
    """Let a shard die by a signal each time that it hangs with tensors of the job, and start it again."""
    for death in range(times):
        hung = eventually(lambda death=death: hits(cluster, "shard.staged") > death, "a shard that hangs")
        assert hung and cluster.job(job).state not in ENDED
        cluster.shards[0].send_signal(number)
        assert cluster.shards[0].ended() == -number
        cluster.start_shard(0)


def hanging(role: str) -> str:
    return "shard.staged=hang@1" if role == "shard" else ""


def test_a_job_that_kills_its_shard_by_a_fault_is_set_aside(tmp_path: Path, gpt_spec: str) -> None:
    with Cluster(tmp_path, workers=1, shards=1, failpoints=hanging) as cluster:
        job = cluster.submit(gpt_spec)
        die_again_and_again(cluster, job, signal.SIGSEGV, MOST_CRASHES)
        ended = cluster.wait(job, lambda each: each.state in ENDED, "the job's end")
        assert ended.state == jobs.FAILED
        assert f"failed {MOST_CRASHES} times" in ended.detail
        assert "shard 0 of 1" in ended.detail and "its process died: SIGSEGV" in ended.detail


def test_kills_by_a_person_never_end_a_job(tmp_path: Path, gpt_spec: str, undisturbed: Bits) -> None:
    with Cluster(tmp_path, workers=1, shards=1, failpoints=hanging) as cluster:
        job = cluster.submit(gpt_spec)
        die_again_and_again(cluster, job, signal.SIGKILL, MOST_CRASHES)
        cluster._failpoints = None
        cluster.shards[0].kill()
        cluster.start_shard(0)
        assert bits(cluster.finish(job)) == undisturbed
