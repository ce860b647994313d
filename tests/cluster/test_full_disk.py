"""The state dirs are on a small disk that fills and empties, while people submit and cancel and daemons are killed."""

from __future__ import annotations

import json
import random
import signal
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from protos import jobs_pb2 as jobs
from services.errors import Failed
from tests.cluster.test_failpoints import ALL, kills_of, roles_of, run_undisturbed, spec, table
from tests.support.cluster.bits import STEPS, Bits, bits
from tests.support.cluster.daemon import LIMIT_SECONDS, eventually
from tests.support.cluster.harness import ENDED, Cluster
from tests.support.cluster.stock_files import pieces_of, ref_of, write_file
from tests.support.small_disk import SmallDisk, small_disk

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

FULL = grpc.StatusCode.RESOURCE_EXHAUSTED
CALL_SECONDS = 3.0
"""Longest wait for an answer, which may never come from a process that was killed."""
ROLES = ("optimizer", "aggregator", "worker")


@contextmanager
def small_disks(folder: Path, tiers: int, size: str) -> Iterator[list[SmallDisk]]:
    """Put each state dir of a cluster on a small disk of its own."""
    names = ["aggregator-state", "optimizer-state"][: tiers - 1]
    with ExitStack() as stack:
        yield [stack.enter_context(small_disk(folder / name, size)) for name in names]


@pytest.mark.parametrize("tiers", [3, 2])
def test_a_job_goes_on_while_the_disk_is_full(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits, tiers: int
) -> None:
    """Check that a running job reaches its last step on a full disk, through restarts, and ends once there is space."""
    options = ("--no-shared-memory",)  # which would bypass the gate
    with (
        small_disks(tmp_path, tiers, "64m") as disks,
        Cluster(tmp_path, tiers=tiers, options=options) as cluster,
    ):
        gated = cluster.relay(
            cluster.to_aggregator, gate_closed=True
        )  # the job waits for the disk to be full
        cluster.start_worker(aggregator=gated.address, wait=False)
        job = cluster.submit(gpt_spec)
        cluster.checkpoint(job, 0)
        for disk in disks:
            disk.fill()
        gated.open_gate()
        with pytest.raises(grpc.RpcError) as refused:
            while True:
                cluster.submit(gpt_spec)
        assert refused.value.code() is FULL
        assert "the disk is full; free space, then try again" in str(refused.value.details())
        late = [each.id for each in cluster.stub.List(jobs.ListRequest(), timeout=LIMIT_SECONDS).jobs[1:]]
        for each in late:  # their records had space in pages that were there already
            assert (
                cluster.stub.Cancel(jobs.CancelRequest(job=each), timeout=LIMIT_SECONDS).state
                == jobs.CANCELLED
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
        pytest.param(4096, id="generation"),
        pytest.param(12288, id="layout"),
        pytest.param(20480, id="checkpoint"),
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

    Most processes are armed with a failpoint, at which they kill themselves; others are killed at random times.

    Args:
        folder: the cluster's folder.
        spec: the job that is submitted.
        seed: seed of the order.
    """

    def __init__(self, folder: Path, spec: str, seed: int) -> None:
        self._log = folder / "failpoints.log"
        self._spec = spec
        self._random = random.Random(seed)
        self._cluster: Cluster
        self._disks: list[SmallDisk]
        self.jobs: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.tried: set[str] = set()  # jobs of which a cancel was asked, whatever the answer
        self.refused = 0
        self.timed = 0
        self._arms = False

    @property
    def kills(self) -> int:
        """Number of processes that were killed."""
        return self.timed + (kills_of(self._log).total() if self._log.exists() else 0)

    def arm(self, role: str) -> str:
        """Return the failpoint of a process that is about to start; empty for none."""
        if not self._arms or self._random.random() < 0.3:
            return ""
        name = self._random.choice([each for each in ALL if role in roles_of(each)])
        return f"{name}=kill@{1 if 'epoch' in name else self._random.choice((1, 1, 2, 4))}"

    def run(self, cluster: Cluster, disks: list[SmallDisk], kills: int) -> None:
        """Go on until so many processes were killed; leave the disks empty and the last processes unarmed."""
        self._cluster, self._disks, self._arms = cluster, disks, True
        actions = (*[self._submit] * 4, *[self._cancel] * 2, *[self._fill, self._empty] * 2, self._kill)
        while self.kills < kills:
            self._random.choice(actions)()
            self._revive()
        self._arms = False
        self._empty()
        for role in ROLES:
            self._cluster.serving(role).kill()
        self._revive()

    def _revive(self) -> None:
        """Start those processes again that have died, until each lives long enough to serve."""
        for role in ROLES:
            daemon = self._cluster.serving(role)
            while (code := daemon.process.poll()) is not None:
                assert code == -signal.SIGKILL, daemon.log_text()[-2000:]
                with suppress(Failed):  # it died at a failpoint during its start
                    self._start(role)
                daemon = self._cluster.daemons[-1]

    def _start(self, role: str) -> None:
        if role == "worker":
            self._cluster.workers.clear()
            self._cluster.start_worker(name="worker-1", wait=False)
        elif role == "aggregator":
            self._cluster.start_aggregator()
        else:
            self._cluster.start_optimizer()

    def _submit(self) -> None:
        """Submit a job, and repeat the request until it is acknowledged or refused."""
        request_id = uuid.uuid4().hex
        own = {**json.loads(self._spec), "name": request_id}  # no role has the file of this spec yet
        request = jobs.SubmitRequest(spec_json=json.dumps(own), request_id=request_id)
        acknowledged = self._call(
            lambda: self._cluster.stub.Submit(request, timeout=CALL_SECONDS, wait_for_ready=True)
        )
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
                lambda: self._cluster.stub.Cancel(request, timeout=CALL_SECONDS, wait_for_ready=True)
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
                self._revive()
        raise AssertionError("no answer to 100 calls")

    def _kill(self) -> None:
        self.timed += 1
        self._cluster.serving(self._random.choice(ROLES)).kill()

    def _fill(self) -> None:
        for disk in self._disks:
            disk.fill(self._random.choice((0, 0, 4096, 40_960)))

    def _empty(self) -> None:
        for disk in self._disks:
            disk.empty()


@pytest.mark.parametrize("kills", [pytest.param(6), pytest.param(200, marks=pytest.mark.slow)])
def test_every_acknowledged_job_and_cancel_holds(tmp_path: Path, kills: int) -> None:
    job_spec = spec(tmp_path, 6)
    expected = run_undisturbed(tmp_path / "calm", job_spec)
    folder = tmp_path / "storm"
    storm = Storm(folder, job_spec, seed=kills)
    options = ("--no-shared-memory",)  # which would bypass the streams
    with (
        small_disks(folder, 3, "32m" if kills < 10 else "256m") as disks,
        Cluster(folder, tiers=3, heartbeat_seconds=1.0, options=options, failpoints=storm.arm) as cluster,
    ):
        cluster.start_worker(wait=False)
        storm.run(cluster, disks, kills)

        def all_ended() -> bool:
            listed = {each.id: each for each in list_jobs(cluster)}
            assert set(storm.jobs) == set(listed), "every acknowledged job, and no other"
            return all(each.state in ENDED for each in listed.values())

        eventually(all_ended, "all jobs to end", limit_seconds=60 + 2 * len(storm.jobs))
        for job in storm.jobs:
            ended = cluster.job(job)
            if job in storm.cancelled:
                assert ended.state == jobs.CANCELLED, ended
            elif job not in storm.tried or ended.state != jobs.CANCELLED:
                assert bits(ended) == expected, ended
        found = kills_of(folder / "failpoints.log")
        print(
            f"\n{kills} kills: {len(storm.jobs)} jobs, {len(storm.cancelled)} cancelled, {storm.refused} refused\n"
            f"{table(folder / 'failpoints.log', storm.timed)}"
        )
        assert kills < 100 or len(found) > len(ALL) // 2, "most failpoints killed"


def list_jobs(cluster: Cluster) -> list[jobs.Job]:
    """Return all jobs, page by page."""
    request, found = jobs.ListRequest(), []
    while True:
        page = cluster.stub.List(request, timeout=LIMIT_SECONDS)
        found += page.jobs
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def test_an_abandoned_upload_makes_room_for_the_last_checkpoint(
    tmp_path: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    """Check that a part of a file, which nobody goes on with, does not keep a job from its end."""
    options = ("--no-shared-memory",)  # which would bypass the gate
    content = random.Random(1).randbytes(40 << 20)
    with (
        small_disks(tmp_path, 2, "64m") as (disk,),
        Cluster(tmp_path, tiers=2, options=options) as cluster,
    ):
        gated = cluster.relay(cluster.to_aggregator, gate_closed=True)
        cluster.start_worker(aggregator=gated.address, wait=False)
        job = cluster.submit(gpt_spec)
        cluster.checkpoint(job, 0)
        with pytest.raises(grpc.RpcError, match="bytes arrived; continue there"):
            write_file(cluster.channel, pieces_of(content[: 36 << 20], ref_of(content)))
        disk.fill()
        gated.open_gate()
        assert bits(cluster.finish(job)) == undisturbed
        assert not list((tmp_path / "aggregator-state" / "files").glob(".*.partial"))
