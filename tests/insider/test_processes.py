"""Clusters of real processes with an insider: TLS, certificates bound to names, and one peer that lies repeatedly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos import jobs_pb2 as jobs
from protos.files_pb2 import FileRef
from services.protocol.file_refs import make_ref
from services.transport.access.permissions import CallerKind
from tests.insider.lying_person import NESTED, TRICKLES, LyingPerson
from tests.insider.lying_standby import PEERS, TOOK_OVER
from tests.insider.processes import (
    ALL_LIES,
    ANSWER_SECONDS,
    CAP_GB,
    HONEST_SECONDS,
    MORE_BYTES,
    Slowness,
    channel_of,
    honest_cluster,
    peak_bytes,
    run_jobs,
    wait_end,
)
from tests.support.certificates import make_certificate, make_certificates
from tests.support.cluster.bits import Bits, bits, deep_config, gpt_config, spec_of, split_config
from tests.support.cluster.harness import Cluster
from tests.support.small_disk import small_disk

STEPS = 6
"""Steps of each job. Short ones: most of what an insider may lie about comes at a job's start and end."""
CLUSTERS: dict[str, list[dict[str, Any]]] = {
    "worker": [{}, {"shards": 2}, {"slow": True}],
    "neighbour": [{"honest": 1}, {"honest": 3, "shared_memory": True}],
    "standby": [{"tiers": 3}],
    "person": [{}],
}
"""Clusters of `make test-all`, by the insider's role. The seed is the number in the list, from 1 on."""
SLOW_CLUSTERS: dict[str, list[dict[str, Any]]] = {
    "worker": [{}, {"tiers": 3}, {"shards": 3}, {"slow": True, "shards": 2}, {"shared_memory": True}],
    "neighbour": [{"honest": 1, "shared_memory": True}, {"honest": 3}, {"honest": 2, "tiers": 3}],
    "standby": [{"tiers": 3}, {"shards": 2}, {"shards": 2, "shared_memory": True}],
    "person": [{}, {"tiers": 3}],
}
"""Clusters of `make test-slow`. Their seeds go on after those of `CLUSTERS`."""
LIES = math.ceil(ALL_LIES / sum(map(len, CLUSTERS.values())))
"""Number of lies in each cluster."""


def clusters_of(role: str) -> Any:
    """Return the mark that runs a test in each cluster of a role, with its seed."""
    cases = [(each, pytest.mark.long) for each in CLUSTERS[role]]
    cases += [(each, pytest.mark.slow) for each in SLOW_CLUSTERS[role]]
    return pytest.mark.parametrize(
        ("seed", "settings"),
        [pytest.param(seed, each, marks=mark) for seed, (each, mark) in enumerate(cases, 1)],
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_certificates(tmp_path_factory.mktemp("certificates"))
    authority = folder / "authority.pem"
    for name in ("worker-1", "worker-2", "worker-3"):
        make_certificate(folder, name, authority, CallerKind.WORKER, bound_names=[name])
    for name in ("alice", "bob"):
        make_certificate(folder, name, authority, CallerKind.PERSON)
    return folder


@pytest.fixture(scope="module")
def spec(corpus: Path) -> str:
    return spec_of(corpus.parent, gpt_config(corpus, project_name="insider", max_steps=STEPS))


@pytest.fixture(scope="module")
def staged_spec(corpus: Path) -> str:
    """Return a job of two stages."""
    config = deep_config(corpus, 2, tied=True, project_name="staged", max_steps=STEPS)
    return spec_of(corpus.parent, split_config(config, (1, 1)))


def start_insider(cluster: Cluster, certificates: Path, name: str, aggregator: str = "") -> Path:
    """Start a lying worker; return the file of its lies."""
    cluster.modules["worker"] = "tests.insider.lying_worker"
    authority = certificates / "authority.pem"
    make_certificate(certificates, name, authority, CallerKind.WORKER, bound_names=[name])
    cluster.start_worker(name=name, certificate=name, aggregator=aggregator, wait=False)
    return cluster.folder / f"{name}.lies"


@clusters_of("worker")
def test_a_lying_worker(
    tmp_path: Path, certificates: Path, spec: str, seed: int, settings: dict[str, Any]
) -> None:
    settings = dict(settings)
    slow = settings.pop("slow", False)
    with honest_cluster(tmp_path, certificates, spec, **settings) as (cluster, expected):
        relay = cluster.relay(cluster.aggregator)
        told = start_insider(cluster, certificates, f"insider-worker-{seed}", relay.address)
        slowness = Slowness(relay, seed, told)
        if slow:
            slowness.start()
        run_jobs(cluster, spec, expected, told, LIES)
        if slow:
            slowness.stop()


@pytest.mark.slow
@pytest.mark.parametrize(("there", "back"), [(True, False), (False, True)])
def test_a_worker_slowed_for_good(
    tmp_path: Path, certificates: Path, spec: str, there: bool, back: bool
) -> None:
    """Slow an honest worker to a byte a second amid a job, and for good; its work goes to others."""
    with honest_cluster(tmp_path, certificates, spec) as (cluster, expected):
        relay = cluster.relay(cluster.aggregator)
        cluster.start_worker(name="worker-3", certificate="worker-3", aggregator=relay.address)
        job = cluster.submit(spec)
        cluster.wait_step(job, 1)
        relay.trickle(there=there, back=back)
        ended = wait_end(cluster, job, "with a slow worker")
        assert ended.state == jobs.SUCCEEDED and bits(ended) == expected


@clusters_of("neighbour")
def test_a_lying_neighbour(
    tmp_path: Path, certificates: Path, staged_spec: str, seed: int, settings: dict[str, Any]
) -> None:
    """With one honest worker, the job goes on in that one; with more, in rows of the honest."""
    with honest_cluster(tmp_path, certificates, staged_spec, **settings) as (cluster, expected):
        told = start_insider(cluster, certificates, f"insider-neighbour-{seed}")
        run_jobs(cluster, staged_spec, expected, told, LIES)


@clusters_of("standby")
def test_a_lying_standby(
    tmp_path: Path, certificates: Path, spec: str, seed: int, settings: dict[str, Any]
) -> None:
    with honest_cluster(tmp_path, certificates, spec, aggregator_options=("--standby",), **settings) as (
        cluster,
        expected,
    ):
        peers = {each.name: each.address for each in cluster.daemons}
        (tmp_path / PEERS).write_text(json.dumps(peers))
        cluster.modules["aggregator"] = "tests.insider.lying_standby"
        name = f"insider-standby-{seed}"
        cluster.start_other_aggregator(name)
        run_jobs(cluster, spec, expected, tmp_path / f"{name}.lies", LIES)
        above = [cluster.optimizer, *cluster.shards]
        assert any(each is not None and TOOK_OVER.format(name) in each.log_text() for each in above)


@pytest.fixture(scope="module")
def tokens_spec(corpus: Path) -> str:
    """Return a job over a file of token ids."""
    path = corpus.parent / "insider.npy"
    np.save(path, (np.arange(20_000) % 90).astype("<u2"))
    config = gpt_config(path, project_name="tokens", max_steps=2)
    del config["training_config"]["tokenizer_type"]
    config["transformer_config"]["vocab_size"] = 96
    return spec_of(corpus.parent, config)


@pytest.mark.long
def test_what_a_worker_uploads_leaves_room_for_others(tmp_path: Path, certificates: Path, spec: str) -> None:
    """Fill the disk with a part of a file, and abandon it: finding 7 of issue 24."""
    with (
        small_disk(tmp_path / "aggregator-state", "96m"),
        honest_cluster(tmp_path, certificates, spec, probed=False) as (cluster, expected),
    ):
        insider = LyingPerson(channel_of(cluster, certificates, "worker-3"), 0, [], [])
        with pytest.raises(grpc.RpcError):
            insider.upload(bytes(200_000_000))
        ended = wait_end(cluster, cluster.submit(spec), "on a full disk", HONEST_SECONDS)
        assert ended.state == jobs.SUCCEEDED and bits(ended) == expected


@clusters_of("person")
def test_a_lying_person(
    tmp_path: Path, certificates: Path, spec: str, tokens_spec: str, seed: int, settings: dict[str, Any]
) -> None:
    wanted = [b"what bob needs" * 10_000, NESTED, b"x" * 2_000_000]
    with honest_cluster(tmp_path, certificates, spec, **settings) as (cluster, expected):
        alice, bob = (
            LyingPerson(channel_of(cluster, certificates, name), seed, [spec, tokens_spec], wanted)
            for name in ("alice", "bob")
        )
        told = tmp_path / "person.lies"
        try:
            for _ in range(LIES):
                alice.lie()
                told.write_text("\n".join(alice.told))
                bob.upload(b"%d" % len(alice.told) * 100)
            run_jobs(cluster, spec, expected, told, LIES)
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
    assert not alice.submitted, "a worker would wait for ever, though others go on beside it"


@pytest.mark.long
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
    shared_cluster: tuple[Cluster, Bits],
    spec: str,
    tokens_spec: str,
    lie: Callable[[LyingPerson, LyingPerson, str], None],
) -> None:
    cluster, expected = shared_cluster
    roles = list(cluster.daemons)
    before = [peak_bytes(daemon) for daemon in roles]
    alice, bob = (
        LyingPerson(channel_of(cluster, certificates, name), 0, [], []) for name in ("alice", "bob")
    )
    try:
        lie(alice, bob, tokens_spec)
        job = cluster.submit(spec)
        ended = wait_end(cluster, job, "behind it", HONEST_SECONDS)
        assert ended.state == jobs.SUCCEEDED and bits(ended) == expected
    finally:
        alice.close()
        for each in (*alice.submitted, *([job] if "job" in locals() else [])):
            with suppress(grpc.RpcError):
                cluster.stub.Cancel(jobs.CancelRequest(job=each), timeout=ANSWER_SECONDS)
    for daemon, peak in zip(roles, before, strict=True):
        assert peak_bytes(daemon) - peak <= MORE_BYTES + len(NESTED), f"{daemon.name} has taken more"


@pytest.fixture(scope="module")
def shared_cluster(
    tmp_path_factory: pytest.TempPathFactory, certificates: Path, spec: str
) -> Iterator[tuple[Cluster, Bits]]:
    with honest_cluster(tmp_path_factory.mktemp("shared"), certificates, spec, probed=False) as shared:
        yield shared
