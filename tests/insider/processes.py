"""Clusters of real processes for an insider: what they must keep to while it lies.

Each lie is logged with its seed: `SEED.NUMBER`, the seed of the test and the number of the life, or of the call.
"""

from __future__ import annotations

import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import grpc

from protos import jobs_pb2 as jobs
from protos.jobs_pb2_grpc import JobsStub
from tests.insider import unfixed
from tests.insider.lives import Log
from tests.support.cluster.bits import Bits, bits
from tests.support.cluster.daemon import Daemon, eventually
from tests.support.cluster.harness import ENDED, Cluster
from tests.support.cluster.relay import Relay

Result = TypeVar("Result")

ALL_LIES = 120
"""Number of lies that `make test-all` tells."""
MOST_SECONDS = 400.0
"""Longest time until a cluster's lies were told; on an idle machine a quarter of a minute."""
ANSWER_SECONDS = 5.0
"""Longest time until another person's call is answered."""
UNEXPLAINED_SECONDS = 10.0
HEARTBEAT_SECONDS = 2.0
SLOW_SECONDS = (1.0, 3.0, 4 * HEARTBEAT_SECONDS)
"""How long an insider is slow; the longest makes a worker count as gone."""
JOB_SECONDS = 300.0
"""Longest time of an honest job; a liar in its row delays that by `stall` for each worker, more than once."""
HONEST_SECONDS = 30.0
"""Longest time until a job ends that is behind a job of the insider."""
CAP_GB = 1
"""Bytes that a person may upload."""
MORE_BYTES = 64 << 20
"""Memory that a role may take beyond what it takes undisturbed."""
MOST_MORE_BYTES = 3 << 30
"""Address space that a daemon may take beyond what it has, so that a lie does not take this machine's memory."""


def peak_bytes(daemon: Daemon, field: str = "VmHWM") -> int:
    """Return a field of the memory of a process."""
    lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def channel_of(cluster: Cluster, certificates: Path, person: str) -> grpc.Channel:
    """Return a connection of a person of its own."""
    read = [
        (certificates / name).read_bytes() for name in ("authority.pem", f"{person}.key", f"{person}.pem")
    ]
    options = (("grpc.use_local_subchannel_pool", 1),)
    return grpc.secure_channel(cluster.aggregator.address, grpc.ssl_channel_credentials(*read), options)


def answered(call: Callable[[], Result]) -> Result:
    """Return what a call returns; repeat it, as commands do, while its answer is that there is no leader now.

    Raises:
        grpc.RpcError: it failed otherwise.
        AssertionError: there is no other answer in time.
    """

    def attempt() -> list[Result]:
        try:
            return [call()]
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return []

    return eventually(attempt, "an answer of a leader", ANSWER_SECONDS)[0]


class Probe(threading.Thread):
    """Another person's calls during the lies.

    Attributes:
        problems: calls that were not answered in time, and waits that no status explained.
    """

    def __init__(self, channel: grpc.Channel, spec: str) -> None:
        super().__init__(daemon=True)
        self.problems: list[str] = []
        stub: Any = JobsStub
        self._stub = stub(channel)
        self._spec = spec
        self._over = threading.Event()
        self._seen = ("", 0)
        self._since = time.monotonic()

    def run(self) -> None:
        while not self._over.wait(0.5):
            for name, call in (("jobs", self._list), ("status", self._status), ("submit", self._submit)):
                try:
                    answered(call)
                except (grpc.RpcError, AssertionError) as error:
                    self.problems.append(f"{name}: {error}")

    def _list(self) -> None:
        self._stub.List(jobs.ListRequest(limit=5, newest_first=True), timeout=ANSWER_SECONDS)

    def _status(self) -> None:
        status = self._stub.Status(jobs.StatusRequest(), timeout=ANSWER_SECONDS)
        if not status.running_jobs:
            return
        job = self._stub.Get(jobs.JobRequest(job=status.running_jobs[0]), timeout=ANSWER_SECONDS)
        if (job.id, job.step) != self._seen:
            self._seen, self._since = (job.id, job.step), time.monotonic()
        idle = time.monotonic() - self._since
        told = status.waiting or status.waits or job.detail or any(each.detail for each in status.workers)
        if idle > UNEXPLAINED_SECONDS and not told:
            self.problems.append(f"job {job.id} has waited for {idle:.0f} s, and status does not say why")

    def _submit(self) -> None:
        job = self._stub.Submit(
            jobs.SubmitRequest(spec_json=self._spec, name="probe"), timeout=ANSWER_SECONDS
        )
        self._stub.Cancel(jobs.CancelRequest(job=job.id), timeout=ANSWER_SECONDS)

    def stop(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def honest_cluster(
    folder: Path,
    certificates: Path,
    spec: str,
    *,
    honest: int = 2,
    probed: bool = True,
    shared_memory: bool = False,
    aggregator_options: tuple[object, ...] = (),
    **settings: Any,
) -> Iterator[tuple[Cluster, Bits]]:
    """Run a cluster and one undisturbed job, whose bits later ones must have; check memory and answers at the end.

    Args:
        folder: folder of the cluster.
        certificates: folder of the certificates.
        spec: the job.
        honest: number of honest workers.
        probed: whether another person calls meanwhile.
        shared_memory: whether processes share memory.
        aggregator_options: further options of the aggregator.
        **settings: further arguments of `Cluster`.
    """
    with Cluster(
        folder,
        certificates=certificates,
        heartbeat_seconds=HEARTBEAT_SECONDS,
        options=() if shared_memory else ("--no-shared-memory",),
        aggregator_options=("--max-upload-gb-per-person", CAP_GB, *aggregator_options),
        modules=unfixed.modules(),
        **settings,
    ) as cluster:
        cluster.call_over(channel_of(cluster, certificates, "bob"))
        for number in range(honest):
            name = f"worker-{number + 1}"
            cluster.start_worker(name=name, certificate=name)
        expected = bits(cluster.finish(cluster.submit(spec)))
        roles = list(cluster.daemons)
        before = {daemon.name: peak_bytes(daemon) for daemon in roles}
        for daemon in roles:
            most = peak_bytes(daemon, "VmSize") + MOST_MORE_BYTES
            resource.prlimit(daemon.pid, resource.RLIMIT_AS, (most, most))
        probe = Probe(channel_of(cluster, certificates, "bob"), spec)
        if not probed:
            yield cluster, expected
            return
        probe.start()
        yield cluster, expected
        probe.stop()
        assert not probe.problems, probe.problems[:5]
        for daemon in roles:
            assert daemon.process.poll() is None, f"{daemon.name} has ended"
            more = peak_bytes(daemon) - before[daemon.name]
            assert more <= MORE_BYTES, f"{daemon.name} has taken {more >> 20} MB more"


class Slowness(threading.Thread):
    """Slowness of an insider's connections, to a byte a second, now and then.

    Args:
        relay: what its connections go through.
        seed: what directions and times follow from.
        told: file of its lies.
    """

    def __init__(self, relay: Relay, seed: int, told: Path) -> None:
        super().__init__(daemon=True)
        self._relay, self._draw, self._log = relay, random.Random(f"slowness of {seed}"), Log(f"{seed}", told)
        self._over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._over.wait(self._draw.uniform(0.5, 2.0)):
            number += 1
            there, back = self._draw.choice(((True, False), (False, True), (True, True)))
            seconds = self._draw.choice(SLOW_SECONDS)
            self._log.note(number, f"a byte a second for {seconds} s, to it: {there}, from it: {back}")
            self._relay.trickle(there=there, back=back)
            self._over.wait(seconds)
            self._relay.trickle(there=False, back=False)

    def stop(self) -> None:
        self._over.set()
        self.join()


def run_jobs(cluster: Cluster, spec: str, expected: Bits, told: Path, lies: int) -> None:
    """Run jobs until there were enough lies; check the bits of each."""
    deadline = time.monotonic() + MOST_SECONDS
    count = 0
    while count < lies and time.monotonic() < deadline:
        job = answered(partial(cluster.submit, spec))
        ended = wait_end(cluster, job, f"lies: {_last(told)}")
        assert ended.state == jobs.SUCCEEDED, f"{ended.detail}; lies: {_last(told)}"
        assert bits(ended) == expected, f"lies: {_last(told)}"
        count = len(told.read_text().splitlines()) if told.exists() else 0
    assert count >= lies, f"only {count} lies"


def wait_end(cluster: Cluster, job: str, what: str = "", limit_seconds: float = JOB_SECONDS) -> jobs.Job:
    """Wait for the end of a job, and return its record."""

    def look() -> jobs.Job | None:
        found = answered(partial(cluster.job, job))
        return found if found.state in ENDED else None

    ended = eventually(look, f"the end of {job}; {what}", limit_seconds)
    assert ended is not None
    return ended


def _last(told: Path) -> str:
    return "; ".join(told.read_text().splitlines()[-5:])[:1500] if told.exists() else "none"
