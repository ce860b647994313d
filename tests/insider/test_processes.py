"""Clusters of real processes with an insider: TLS, certificates bound to names, and one peer that lies again and again.

Each lie is logged with its seed: `SEED.NUMBER`, the seed of the test and the number of the life, or of the call.
"""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos import jobs_pb2 as jobs
from protos.files_pb2 import FileRef
from protos.jobs_pb2_grpc import JobsStub
from services.protocol.file_refs import make_ref
from services.transport.access.permissions import CallerKind
from tests.insider.lying_person import NESTED, TRICKLES, LyingPerson
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster.bits import (
    Bits,
    bits,
    gpt_config,
    spec_of,
)
from tests.support.cluster.daemon import Daemon, eventually
from tests.support.cluster.harness import ENDED, Cluster
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.long

LIES = 28
"""Number of lies in each cluster."""
MOST_SECONDS = 180.0
"""Longest time until so many lies were told; on an idle machine half a minute."""
ANSWER_SECONDS = 5.0
"""Longest time until another person's call is answered."""
UNEXPLAINED_SECONDS = 10.0
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


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    authority = folder / "authority.pem"
    for name in ("worker-1", "worker-2", "worker-3"):
        make_certificate(folder, name, authority, CallerKind.WORKER, bound_names=[name])
    for name in ("alice", "bob"):
        make_certificate(folder, name, authority, CallerKind.PERSON)
    return folder


def channel_of(cluster: Cluster, certificates: Path, person: str) -> grpc.Channel:
    """Return a connection of a person of its own."""
    read = [
        (certificates / name).read_bytes() for name in ("authority.pem", f"{person}.key", f"{person}.pem")
    ]
    options = (("grpc.use_local_subchannel_pool", 1),)
    return grpc.secure_channel(cluster.aggregator.address, grpc.ssl_channel_credentials(*read), options)


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
                began = time.monotonic()
                try:
                    call()
                except grpc.RpcError as error:
                    seconds = time.monotonic() - began
                    self.problems.append(f"{name}: {error.code()} after {seconds:.1f} s: {error.details()}")

    def _list(self) -> None:
        self._stub.List(jobs.ListRequest(limit=5, newest_first=True), timeout=ANSWER_SECONDS)

    def _status(self) -> None:
        status = self._stub.Status(jobs.StatusRequest(), timeout=ANSWER_SECONDS)
        if not status.running_job:
            return
        job = self._stub.Get(jobs.JobRequest(job=status.running_job), timeout=ANSWER_SECONDS)
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
    folder: Path, certificates: Path, spec: str, expected: Bits, *, probed: bool = True
) -> Iterator[Cluster]:
    """Run a cluster with two honest workers and one undisturbed job; check memory and answers at the end."""
    settings: dict[str, Any] = {
        "certificates": certificates,
        "heartbeat_seconds": 2.0,
        "options": ("--no-shared-memory",),
        "aggregator_options": ("--max-upload-gb-per-person", CAP_GB),
    }
    with Cluster(folder, **settings) as cluster:
        cluster.call_over(channel_of(cluster, certificates, "bob"))
        for number in range(2):
            name = f"worker-{number + 1}"
            cluster.start_worker(name=name, certificate=name)
        assert bits(cluster.finish(cluster.submit(spec))) == expected
        roles = [cluster.aggregator, *cluster.workers]
        before = {daemon.name: peak_bytes(daemon) for daemon in roles}
        for daemon in roles:
            most = peak_bytes(daemon, "VmSize") + MOST_MORE_BYTES
            resource.prlimit(daemon.pid, resource.RLIMIT_AS, (most, most))
        probe = Probe(channel_of(cluster, certificates, "bob"), spec)
        if not probed:
            yield cluster
            return
        probe.start()
        yield cluster
        probe.stop()
        assert not probe.problems, probe.problems[:5]
        for daemon in roles:
            assert daemon.process.poll() is None, f"{daemon.name} has ended"
            more = peak_bytes(daemon) - before[daemon.name]
            assert more <= MORE_BYTES, f"{daemon.name} has taken {more >> 20} MB more"


def run_jobs(cluster: Cluster, spec: str, expected: Bits, told: Path) -> int:
    """Run jobs until there were enough lies; check the bits of each, and return the number of lies."""
    deadline = time.monotonic() + MOST_SECONDS
    count = 0
    while count < LIES and time.monotonic() < deadline:
        job = cluster.submit(spec)
        ended = eventually(partial(_ended, cluster, job), f"the end of {job}; lies: {_last(told)}")
        assert ended.state == jobs.SUCCEEDED, f"{ended.detail}; lies: {_last(told)}"
        assert bits(ended) == expected, f"lies: {_last(told)}"
        count = len(told.read_text().splitlines()) if told.exists() else 0
    return count


def _ended(cluster: Cluster, job: str) -> jobs.Job | None:
    found = cluster.job(job)
    return found if found.state in ENDED else None


def _last(told: Path) -> str:
    return "; ".join(told.read_text().splitlines()[-5:])[:1500] if told.exists() else "none"


@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_a_lying_worker(
    tmp_path: Path, certificates: Path, gpt_spec: str, undisturbed: Bits, seed: int
) -> None:
    with honest_cluster(tmp_path, certificates, gpt_spec, undisturbed) as cluster:
        cluster.modules["worker"] = "tests.insider.lying_worker"
        name = f"insider-worker-{seed}"
        make_certificate(
            certificates, name, certificates / "authority.pem", CallerKind.WORKER, bound_names=[name]
        )
        cluster.start_worker(name=name, certificate=name, wait=False)
        count = run_jobs(cluster, gpt_spec, undisturbed, tmp_path / f"{name}.lies")
        assert count >= LIES, f"only {count} lies"


@pytest.fixture(scope="module")
def tokens_spec(corpus: Path) -> str:
    """Return a job over a file of token ids."""
    path = corpus.parent / "insider.npy"
    np.save(path, (np.arange(20_000) % 90).astype("<u2"))
    config = gpt_config(path, project_name="tokens", max_steps=2)
    del config["training_config"]["tokenizer_type"]
    config["transformer_config"]["vocab_size"] = 96
    return spec_of(corpus.parent, config)


def test_what_a_worker_uploads_leaves_room_for_others(
    tmp_path: Path, certificates: Path, gpt_spec: str, undisturbed: Bits
) -> None:
    """Fill the disk with a part of a file, and abandon it: finding 7 of issue 24."""
    with (
        small_disk(tmp_path / "aggregator-state", "96m"),
        honest_cluster(tmp_path, certificates, gpt_spec, undisturbed, probed=False) as cluster,
    ):
        insider = LyingPerson(channel_of(cluster, certificates, "worker-3"), 0, [], [])
        with pytest.raises(grpc.RpcError):
            insider.upload(bytes(200_000_000))
        job = cluster.submit(gpt_spec)
        ended = eventually(lambda: _ended(cluster, job), "the honest job on a full disk", HONEST_SECONDS)
        assert ended.state == jobs.SUCCEEDED and bits(ended) == undisturbed


@pytest.mark.parametrize("seed", [1, 2])
def test_a_lying_person(
    tmp_path: Path, certificates: Path, gpt_spec: str, tokens_spec: str, undisturbed: Bits, seed: int
) -> None:
    wanted = [b"what bob needs" * 10_000, NESTED, b"x" * 2_000_000]
    with honest_cluster(tmp_path, certificates, gpt_spec, undisturbed) as cluster:
        alice, bob = (
            LyingPerson(channel_of(cluster, certificates, name), seed, [gpt_spec, tokens_spec], wanted)
            for name in ("alice", "bob")
        )
        told = tmp_path / "person.lies"
        try:
            for _ in range(LIES):
                alice.lie()
                told.write_text("\n".join(alice.told))
                bob.upload(b"%d" % len(alice.told) * 100)
            run_jobs(cluster, gpt_spec, undisturbed, told)
        finally:
            alice.close()


def trickles_all(alice: LyingPerson, bob: LyingPerson, _: str) -> None:
    """Take all transfer slots with slow uploads: finding 3 of issue 24."""
    alice.trickle(*(b"%d" % number * 1_000_000 for number in range(TRICKLES)))
    bob.upload(b"bob's own")


def trickles_a_file_of_another(alice: LyingPerson, bob: LyingPerson, _: str) -> None:
    """Hold the lock of a file that another person needs, by a slow upload: finding 4."""
    content = b"what both need" * 1000
    alice.trickle(content)
    bob.upload(content)


def charges_another(alice: LyingPerson, bob: LyingPerson, spec: str) -> None:
    """Have a wrong size charged to the person who has uploaded the file: finding 5."""
    job = json.loads(spec)
    [file] = job["data"]["files"]
    bob.upload(Path(file["path"]).read_bytes())
    file["path"], job["steps"] = "/nowhere/insider.npy", 100_000  # the job keeps its file meanwhile
    kept = bob.submit(json.dumps(job))
    try:
        alice.ask(FileRef(sha256=file["sha256"], size=CAP_GB * 10**9 - 1))
        bob.upload(b"another of bob's" * 1000)
    finally:
        bob.cancel(kept)


def names_a_huge_identity(alice: LyingPerson, bob: LyingPerson, spec: str) -> None:
    """Name a file as an identity that takes over 1 GB once it is parsed: finding 6."""
    job = json.loads(spec)
    [file] = job["data"]["files"]
    alice.upload(Path(file["path"]).read_bytes())
    alice.upload(NESTED)
    file["identity"], file["path"] = make_ref(NESTED).sha256, "/nowhere/insider.npy"
    alice.submit(json.dumps(job))


def has_a_nul_byte_in_a_path(alice: LyingPerson, bob: LyingPerson, spec: str) -> None:
    """End a worker's task unobserved, so that the job builds until it stalls: finding 8."""
    job = json.loads(spec)
    job["data"]["files"][0]["path"] = "/nowhere/a\0b"
    alice.submit(json.dumps(job))


@pytest.mark.parametrize(
    "lie",
    [
        trickles_all,
        trickles_a_file_of_another,
        charges_another,
        names_a_huge_identity,
        has_a_nul_byte_in_a_path,
    ],
)
def test_what_a_person_could_do_to_others(
    certificates: Path,
    shared_cluster: Cluster,
    gpt_spec: str,
    tokens_spec: str,
    undisturbed: Bits,
    lie: Callable[[LyingPerson, LyingPerson, str], None],
) -> None:
    cluster = shared_cluster
    roles = [cluster.aggregator, *cluster.workers]
    before = [peak_bytes(daemon) for daemon in roles]
    alice, bob = (
        LyingPerson(channel_of(cluster, certificates, name), 0, [], []) for name in ("alice", "bob")
    )
    try:
        lie(alice, bob, tokens_spec)
        job = cluster.submit(gpt_spec)
        ended = eventually(lambda: _ended(cluster, job), "the honest job behind it", HONEST_SECONDS)
        assert ended.state == jobs.SUCCEEDED and bits(ended) == undisturbed
    finally:
        alice.close()
        for each in (*alice.submitted, *([job] if "job" in locals() else [])):
            with suppress(grpc.RpcError):
                cluster.stub.Cancel(jobs.CancelRequest(job=each), timeout=ANSWER_SECONDS)
    for daemon, peak in zip(roles, before, strict=True):
        assert peak_bytes(daemon) - peak <= MORE_BYTES + len(NESTED), f"{daemon.name} has taken more"


@pytest.fixture(scope="module")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory, certificates: Path, gpt_spec: str, undisturbed: Bits
) -> Iterator[Cluster]:
    with honest_cluster(
        tmp_path_factory.mktemp("shared"), certificates, gpt_spec, undisturbed, probed=False
    ) as cluster:
        yield cluster
