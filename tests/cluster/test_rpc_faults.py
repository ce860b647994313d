"""Fault × RPC: whatever happens to a message of a data or control stream, the job ends in the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import tiermesh
from tests.support.cluster.rpc_proxy import Fault, ProxiedCluster
from tests.support.marks import marks_of

STEPS = 3
CONTROL_KINDS = ("before", "midway", "after", "cancelled", "slow", "duplicated", "truncated", "bit-flipped")
# gRPC keeps the order of a stream's messages. If they are reordered anyway, only chunks show it, by their index.
CHUNK_KINDS = (*CONTROL_KINDS, "reordered")
CHUNK_BYTES = 4096

MATRIX = [
    (service, method, direction, kind)
    for service in ("Cluster", "Optimizer")
    for method, kinds in (("Attend", CONTROL_KINDS), ("Exchange", CHUNK_KINDS))
    for direction in ("up", "down")
    for kind in kinds
    if (kind, direction) != ("before", "down")  # Before the first message a fault has no direction.
]
QUICK = {
    ("Cluster", "Exchange", "up", "bit-flipped"),
    ("Cluster", "Attend", "down", "truncated"),
    ("Optimizer", "Exchange", "up", "after"),
    ("Optimizer", "Attend", "down", "cancelled"),
}
"""Cells that `make test` runs."""
LONG = {
    ("Cluster", "Exchange", "down", "truncated"),
    ("Cluster", "Exchange", "up", "reordered"),
    ("Cluster", "Attend", "up", "midway"),
    ("Cluster", "Attend", "down", "duplicated"),
    ("Optimizer", "Attend", "down", "bit-flipped"),
    ("Optimizer", "Exchange", "down", "bit-flipped"),
    ("Optimizer", "Attend", "up", "before"),
}
"""Cells that `make test-all` adds. The others are slow."""


CHECK_MATRIX = [
    (service, direction, kind)
    for service in ("Cluster", "Optimizer")
    for direction in ("up", "down")
    for kind in CHUNK_KINDS
    if (kind, direction) != ("before", "down")
]
LONG_CHECKS = {("Cluster", "up", "bit-flipped"), ("Optimizer", "down", "truncated")}
"""Cells of link checks that `make test-all` runs. The others are slow."""


@pytest.fixture(scope="module")
def spec(corpus: Path) -> str:
    return spec_of(corpus.parent, gpt_config(corpus, project_name="faults", max_steps=STEPS))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Start a 3-tier cluster. Jobs run in it one after the other, each with its fault."""
    folder = tmp_path_factory.mktemp("faults")
    with ProxiedCluster(folder, tiers=3, workers=2, options=("--no-shared-memory",)) as running:
        yield running


@pytest.fixture(scope="module")
def undamaged(cluster: ProxiedCluster, spec: str) -> Bits:
    """Return the result without faults."""
    return bits(cluster.finish(cluster.submit(spec)))


@pytest.mark.parametrize(
    ("service", "method", "direction", "kind"),
    [pytest.param(*each, marks=marks_of(each, QUICK, LONG), id="-".join(each)) for each in MATRIX],
)
def test_the_job_ends_in_the_same_bits(
    cluster: ProxiedCluster, spec: str, undamaged: Bits, service: str, method: str, direction: str, kind: str
) -> None:
    proxy = cluster.proxy_of(service)
    least_bytes = CHUNK_BYTES if method == "Exchange" else 0
    proxy.strike(Fault(f"/tiermesh.{service}/{method}", direction, kind, passing=3, least_bytes=least_bytes))
    job = cluster.finish(cluster.submit(spec))
    assert proxy.struck.is_set(), "the fault never happened"
    assert bits(job) == undamaged
    silent = [daemon.name for daemon in cluster.daemons if "silent for" in daemon.log_text()]
    assert not silent, "the end of a stream must be noticed without a timeout"


@pytest.mark.parametrize(
    ("service", "direction", "kind"),
    [pytest.param(*each, marks=marks_of(each, (), LONG_CHECKS), id="-".join(each)) for each in CHECK_MATRIX],
)
def test_a_link_check_names_the_broken_link(
    cluster: ProxiedCluster, service: str, direction: str, kind: str
) -> None:
    """Break a round of a check. No job is involved; the next check finds nothing."""
    proxy = cluster.proxy_of(service)
    cluster.wait_workers(2)
    command = ("check", "--cluster", "--aggregator", cluster.to_aggregator.address)
    proxy.strike(Fault(f"/tiermesh.{service}/MeasureLink", direction, kind, passing=3))
    struck = tiermesh(*command)
    assert proxy.struck.is_set(), "the fault never happened"
    if kind == "slow":
        assert struck.returncode == 0, struck.stderr
    elif kind != "reordered":  # the last message of a round waits for no other, so it may keep its place
        assert struck.returncode == 1, struck.stdout
        end = "-> optimizer" if service == "Optimizer" else "-> aggregator"
        assert end in struck.stderr.splitlines()[-1]
    assert tiermesh(*command).returncode == 0


DOWNLOADS = [
    *(("Checkpoint", kind) for kind in ("before", "midway", "after", "cancelled", "slow", "truncated")),
    *(("Read", kind) for kind in (*CONTROL_KINDS, "reordered")),
]


@pytest.mark.parametrize("service", ["Jobs", "Optimizer"])
@pytest.mark.parametrize(
    ("rpc", "kind"),
    [
        pytest.param(*each, marks=() if each[1] == "truncated" else pytest.mark.long, id="-".join(each))
        for each in DOWNLOADS
    ],
)
def test_a_broken_download_ends_with_the_checkpoint_or_with_a_reason(
    cluster: ProxiedCluster, spec: str, undamaged: Bits, service: str, rpc: str, kind: str, tmp_path: Path
) -> None:
    """A list of files that is lost ends the command; a piece that is lost is read again."""
    job = cluster.finish(cluster.submit(spec)).id
    proxy = cluster.proxy_of(service)
    method = f"/tiermesh.Files/{rpc}" if rpc == "Read" else f"/tiermesh.{service}/{rpc}"
    proxy.strike(Fault(method, "down", kind))
    command = ("download", job, tmp_path, "--aggregator", cluster.to_aggregator.address)
    broken = tiermesh(*command)
    assert proxy.struck.is_set(), "the fault never happened"
    if rpc == "Read":
        assert broken.returncode == 0, broken.stderr
    elif broken.returncode:
        assert (broken.returncode, len(broken.stderr.splitlines())) == (1, 1), broken.stderr
        assert not list(tmp_path.iterdir())
        assert tiermesh(*command).returncode == 0
    model = tmp_path / f"step-{STEPS:08d}" / "model.safetensors"
    assert hashlib.sha256(model.read_bytes()).hexdigest() == undamaged.model_sha256
