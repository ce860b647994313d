"""The state dirs are on a small disk that fills and empties, while people submit and cancel and daemons are killed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from protos import jobs_pb2 as jobs
from tests.support.cluster.bits import STEPS, Bits, bits
from tests.support.cluster.harness import ENDED, LIMIT_SECONDS, Cluster, eventually
from tests.support.small_disk import SmallDisk, small_disk

FULL = grpc.StatusCode.RESOURCE_EXHAUSTED


@contextmanager
def small_disks(folder: Path, tiers: int, size: str) -> Iterator[list[SmallDisk]]:
    """Put each state dir of a cluster on a small disk of its own."""
    names = ["aggregator-state", "optimizer-state"][: tiers - 1]
    with ExitStack() as stack:
        yield [stack.enter_context(small_disk(folder / name, size)) for name in names]


@pytest.mark.parametrize("tiers", [3, pytest.param(2, marks=pytest.mark.long)])
def test_a_job_goes_on_while_the_disk_is_full(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits, tiers: int
) -> None:
    """Check that a running job reaches its last step on a full disk, through restarts, and ends once there is space."""
    with small_disks(tmp_path, tiers, "64m") as disks, Cluster(tmp_path, tiers=tiers, workers=1) as cluster:
        job = cluster.submit(gpt_spec)
        cluster.wait(job, lambda each: each.checkpoint_step > 0, "a checkpoint")
        for disk in disks:
            disk.fill()
        with pytest.raises(grpc.RpcError) as refused:
            while True:
                cluster.submit(gpt_spec)
        assert refused.value.code() is FULL
        assert "the disk is full; free space, then try again" in str(refused.value.details())
        late = [each.id for each in cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs[1:]]
        for each in late:  # their records had space in pages that were there already
            assert (
                cluster.stub.Cancel(jobs.JobRequest(job=each), timeout=LIMIT_SECONDS).state == jobs.CANCELLED
            )
        cluster.serving("optimizer" if tiers == 3 else "aggregator").kill()
        if tiers == 3:
            cluster.start_optimizer()
        else:
            cluster.start_aggregator()
        waiting = cluster.wait(
            job, lambda each: "trying again" in each.detail, "a last checkpoint without space"
        )
        assert waiting.state == jobs.RUNNING
        assert f"no checkpoint of step {STEPS}" in waiting.detail
        cluster.aggregator.kill()
        cluster.start_aggregator()
        assert cluster.job(job).state == jobs.RUNNING
        for disk in disks:
            disk.empty()
        assert bits(cluster.finish(job)) == undisturbed
        states = {each: cluster.job(each).state for each in late}
        assert set(states.values()) <= {jobs.CANCELLED}
        assert cluster.submit(gpt_spec)


@pytest.mark.parametrize(
    "free_bytes",
    [
        pytest.param(0, id="spec"),
        pytest.param(4096, id="generation", marks=pytest.mark.long),
        pytest.param(12288, id="layout", marks=pytest.mark.long),
        pytest.param(20480, id="checkpoint", marks=pytest.mark.long),
    ],
)
def test_a_job_whose_turn_comes_says_that_it_waits_for_space(
    tmp_path: Path, short_spec: str, free_bytes: int
) -> None:
    """Check that a job tells which of its first files has no space, and goes on once there is space."""
    with small_disks(tmp_path, 3, "8m") as (_, disk), Cluster(tmp_path, tiers=3, workers=1) as cluster:
        disk.fill(free_bytes)
        job = cluster.submit(short_spec)
        waiting = cluster.wait(job, lambda each: "No space left" in each.detail, "a job that waits for space")
        assert waiting.state == jobs.RUNNING
        eventually(lambda: "No space left" in cluster.status().waiting, "a status that says so")
        assert cluster.optimizer is not None
        cluster.optimizer.wait_log("No space left")
        disk.empty()
        assert cluster.finish(job).detail == "finished 5 steps"


class Storm:
    """Submits, cancels, kills and a disk that fills and empties, in random order; remembers what was acknowledged.

    Args:
        cluster: The cluster.
        disks: Its disks.
        spec: The job that is submitted.
        seed: Seed of the order.
    """

    def __init__(self, cluster: Cluster, disks: list[SmallDisk], spec: str, seed: int) -> None:
        self._cluster = cluster
        self._disks = disks
        self._spec = spec
        self._random = random.Random(seed)
        self.jobs: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.tried: set[str] = set()  # jobs of which a cancel was asked, whatever the answer
        self.refused = 0
        self.kills = 0

    def run(self, kills: int) -> None:
        """Go on until so many daemons were killed, and leave the disks empty."""
        while self.kills < kills:
            self._random.choice(
                (self._submit, self._submit, self._cancel, self._kill, self._fill, self._empty)
            )()
        self._empty()

    def _submit(self) -> None:
        """Submit a job, and repeat the request until it is acknowledged or refused."""
        request = jobs.SubmitRequest(spec_json=self._spec, request_id=uuid.uuid4().hex)
        acknowledged = self._call(lambda: self._cluster.stub.Submit(request, timeout=10, wait_for_ready=True))
        if acknowledged is None:
            self.refused += 1
        else:
            self.jobs[acknowledged.id] = request.request_id

    def _cancel(self) -> None:
        live = [job for job in self.jobs if job not in self.cancelled]
        if live:
            job = self._random.choice(live)
            request = jobs.JobRequest(job=job)
            self.tried.add(job)
            cancelled = self._call(
                lambda: self._cluster.stub.Cancel(request, timeout=10, wait_for_ready=True)
            )
            if cancelled is not None:
                assert cancelled.state == jobs.CANCELLED
                self.cancelled.add(job)

    def _call(self, call: Callable[[], jobs.Job]) -> jobs.Job | None:
        """Return the answer of a call, repeated while it is lost; None if it was refused."""
        for _ in range(100):
            try:
                return call()
            except grpc.RpcError as error:
                if error.code() in (FULL, grpc.StatusCode.FAILED_PRECONDITION):
                    return None
                assert error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), error
        raise AssertionError("no answer to 100 calls")

    def _kill(self) -> None:
        self.kills += 1
        role = self._random.choice(("aggregator", "optimizer"))
        self._cluster.serving(role).kill()
        if role == "aggregator":
            self._cluster.start_aggregator()
        else:
            self._cluster.start_optimizer()

    def _fill(self) -> None:
        for disk in self._disks:
            disk.fill(self._random.choice((0, 0, 4096, 40_960)))

    def _empty(self) -> None:
        for disk in self._disks:
            disk.empty()


@pytest.mark.parametrize("kills", [6, pytest.param(200, marks=pytest.mark.slow)])
def test_every_acknowledged_job_and_cancel_holds(
    tmp_path: Path, short_spec: str, corpus: Path, kills: int
) -> None:
    with Cluster(tmp_path / "calm", workers=1) as calm:
        expected = bits(calm.finish(calm.submit(short_spec)))
    folder = tmp_path / "storm"
    with (
        small_disks(folder, 3, "32m" if kills < 10 else "256m") as disks,
        Cluster(folder, tiers=3, workers=1, heartbeat_seconds=1.0) as cluster,
    ):
        storm = Storm(cluster, disks, short_spec, seed=kills)
        storm.run(kills)

        def all_ended() -> bool:
            listed = {
                each.id: each for each in cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs
            }
            assert set(storm.jobs) == set(listed), "every acknowledged job, and no other"
            return all(each.state in ENDED for each in listed.values())

        eventually(all_ended, "all jobs to end", limit_seconds=60 + 2 * len(storm.jobs))
        for job in storm.jobs:
            ended = cluster.job(job)
            if job in storm.cancelled:
                assert ended.state == jobs.CANCELLED, ended
            elif job not in storm.tried or ended.state != jobs.CANCELLED:
                assert bits(ended) == expected, ended
        print(
            f"{kills} kills: {len(storm.jobs)} jobs, {len(storm.cancelled)} cancelled, {storm.refused} refused"
        )
