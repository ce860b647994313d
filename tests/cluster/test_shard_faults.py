"""Fault × RPC of shards: whatever happens to a message of their streams, the job ends in the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_rpc_faults import CHUNK_BYTES, CHUNK_KINDS, CONTROL_KINDS
from tests.support.cluster.bits import CHECKPOINT_EVERY, Bits, bits, gpt_config, spec_of
from tests.support.cluster.rpc_proxy import Fault, ProxiedCluster
from tests.support.marks import marks_of

STEPS = 2 * CHECKPOINT_EVERY
ATTEND_KINDS = (*CONTROL_KINDS, "reordered")
"""Orders and reports are numbered, so reordered ones can be detected."""
ASKING_KINDS = ("before", "midway", "after", "cancelled", "slow", "truncated", "bit-flipped")
"""Faults of the single message that requests a copy."""
ENDING_KINDS = ("midway", "after", "cancelled", "slow")
"""Faults of the answer to a checkpoint's part."""
MEMORY_KINDS = ("midway", "after", "duplicated", "truncated", "bit-flipped", "reordered")

MATRIX = [
    *(("network", "Shard", "Attend", way, kind) for way in ("up", "down") for kind in ATTEND_KINDS),
    *(("network", "Files", "Read", "up", kind) for kind in ASKING_KINDS),
    *(("network", "Files", "Read", "down", kind) for kind in CHUNK_KINDS),
    *(("network", "Files", "Write", "up", kind) for kind in CHUNK_KINDS),
    *(("network", "Files", "Write", "down", kind) for kind in ENDING_KINDS),
    *(("network", "Cluster", "Exchange", way, kind) for way in ("up", "down") for kind in CHUNK_KINDS),
    *(("memory", "Cluster", "Exchange", way, kind) for way in ("up", "down") for kind in MEMORY_KINDS),
]
MATRIX = [
    each for each in MATRIX if each[3:] != ("down", "before")
]  # Before the first message a fault has no direction.
LONG = {
    ("network", "Files", "Write", "up", "bit-flipped"),
    ("network", "Files", "Write", "up", "after"),
    ("network", "Shard", "Attend", "down", "truncated"),
    ("network", "Shard", "Attend", "down", "duplicated"),
    ("network", "Files", "Read", "down", "truncated"),
    ("network", "Cluster", "Exchange", "down", "after"),
}
"""Cells that `make test-all` adds. The others are slow."""
_PASSING = {("Read", "up"): 0, ("Read", "down"): 1, ("Write", "up"): 1, ("Write", "down"): 1}
"""Number of messages before the fault; the first Write is that of the job's layout."""
OPTIONS: dict[str, tuple[object, ...]] = {"network": ("--no-shared-memory",), "memory": ()}


@pytest.fixture(scope="module")
def spec(corpus: Path) -> str:
    return spec_of(corpus.parent, gpt_config(corpus, project_name="shard-faults", max_steps=STEPS))


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ProxiedCluster]]:
    """Return clusters with two shards, over the network or shared memory. Each starts on first use."""
    started = _Started(tmp_path_factory)
    yield started
    for cluster in started.values():
        cluster.close()


class _Started(dict[str, ProxiedCluster]):
    def __init__(self, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self._folders = folders

    def __missing__(self, how: str) -> ProxiedCluster:
        folder = self._folders.mktemp(how)
        cluster = ProxiedCluster(folder, workers=1, shards=2, options=OPTIONS[how], steps=STEPS)
        self[how] = cluster.__enter__()
        return cluster


@pytest.fixture(scope="module")
def undamaged(clusters: dict[str, ProxiedCluster], spec: str) -> Bits:
    """Return the result without faults."""
    cluster = clusters["network"]
    return bits(cluster.finish(cluster.submit(spec)))


@pytest.mark.parametrize(
    ("how", "service", "method", "direction", "kind"),
    [pytest.param(*each, marks=marks_of(each, set(), LONG), id="-".join(each)) for each in MATRIX],
)
def test_the_job_ends_in_the_same_bits(
    clusters: dict[str, ProxiedCluster],
    spec: str,
    undamaged: Bits,
    how: str,
    service: str,
    method: str,
    direction: str,
    kind: str,
) -> None:
    cluster = clusters[how]
    proxy, other = (_proxy(cluster, shard) for shard in (0, 1))
    pieces = (method == "Read" and direction == "down") or (method == "Write" and direction == "up")
    large = pieces or (method == "Exchange" and how == "network")
    fault = Fault(
        f"/tiermesh.{service}/{method}",
        direction,
        kind,
        passing=_PASSING.get((method, direction), 3),
        least_bytes=CHUNK_BYTES if large else 0,
    )
    if method == "Write":  # A checkpoint is restored to the shards after one of them was lost.
        cluster.allow_steps(CHECKPOINT_EVERY + 1)
        job = cluster.submit(spec)
        cluster.wait_step(job, CHECKPOINT_EVERY + 1)
        proxy.strike(fault)
        other.strike(Fault("/tiermesh.Shard/Attend", "down", "midway"))
    else:
        proxy.strike(fault)
        job = cluster.submit(spec)
    assert bits(cluster.finish(job)) == undamaged
    assert proxy.struck.is_set(), "the fault never happened"
    silent = [daemon.name for daemon in cluster.daemons if "silent for" in daemon.log_text()]
    assert not silent, "the end of a stream must be noticed without a timeout"


def _proxy(cluster: ProxiedCluster, shard: int) -> Any:
    return cluster.to_shards[shard]
