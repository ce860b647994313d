"""Fault × message of `tiermesh.Files`: whatever happens to a transfer, the job ends in the same bits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from services.protocol.file_refs import MAX_PIECE_BYTES
from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import LIMIT_SECONDS
from tests.support.cluster.rpc_proxy import Fault, ProxiedCluster
from tests.support.marks import marks_of
from training.data.tokenizer import build_character_tokenizer

pytestmark = pytest.mark.long  # tests of the parts run in `make test`

KINDS = ("before", "midway", "after", "cancelled", "slow", "truncated", "bit-flipped")
STREAM_KINDS = (*KINDS, "duplicated", "reordered")
PIECE_BYTES = 100_000
"""Least size of the two pieces of a tokenizer; all other files are smaller."""
NUMBERS = count()

MESSAGES = [
    ("Cluster", "Missing", "up", 0),
    ("Cluster", "Missing", "down", 0),
    ("Cluster", "Write", "up", 0),
    ("Cluster", "Write", "up", 1),
    ("Cluster", "Write", "down", 0),
    ("Optimizer", "Missing", "up", 0),
    ("Optimizer", "Missing", "down", 0),
    ("Optimizer", "Write", "up", 0),
    ("Optimizer", "Write", "up", 1),
    ("Optimizer", "Write", "down", 0),
]
"""Service beside which the files are served, method, direction, and number of such messages before the one that is hit.

A worker uploads to the aggregator, the aggregator to the optimizer. `test_job_inputs.py` has what workers read,
`test_rpc_faults.py` what people do.
"""
MATRIX = [
    (service, method, direction, str(passing), kind)
    for service, method, direction, passing in MESSAGES
    for kind in (STREAM_KINDS if (method, direction) == ("Write", "up") else KINDS)
    if kind != "before" or (direction, passing) == ("up", 0)  # the fault is then the whole call's
]
QUICK = {
    ("Cluster", "Write", "up", "1", "bit-flipped"),
    ("Optimizer", "Write", "up", "1", "midway"),
    ("Cluster", "Missing", "down", "0", "bit-flipped"),
}
LONG = {
    ("Cluster", "Missing", "up", "0", "truncated"),
    ("Cluster", "Write", "up", "0", "duplicated"),
    ("Cluster", "Write", "down", "0", "truncated"),
    ("Optimizer", "Missing", "up", "0", "bit-flipped"),
    ("Optimizer", "Write", "up", "0", "truncated"),
}


def spec(corpus: Path, folder: Path) -> str:
    """Return a job whose tokenizer no role has yet, and whose bits are those of all such jobs.

    The tokenizer is longer than a piece because of a token that never occurs, in which jobs differ.
    """
    content = json.loads(build_character_tokenizer(corpus.read_text()).to_json())
    words = content["model"]["vocab"]
    words[f"{next(NUMBERS):0{MAX_PIECE_BYTES + PIECE_BYTES}d}"] = len(words)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return spec_of(
        folder,
        gpt_config(
            corpus,
            project_name="file-faults",
            tokenizer_type="bpe",
            tokenizer_path=str(path),
            max_steps=2,
            gradient_accumulation_steps=2,
        ),
    )


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    """Start a 3-tier cluster. Jobs run in it one after the other, each with its fault."""
    with ProxiedCluster(tmp_path_factory.mktemp("faults"), tiers=3, workers=1) as running:
        yield running


@pytest.fixture(scope="module")
def undamaged(cluster: ProxiedCluster, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Bits:
    """Return the result without faults."""
    return bits(cluster.finish(cluster.submit(spec(corpus, tmp_path_factory.mktemp("undamaged")))))


@pytest.mark.parametrize(
    ("service", "method", "direction", "passing", "kind"),
    [pytest.param(*each, marks=marks_of(each, QUICK, LONG), id="-".join(each)) for each in MATRIX],
)
def test_the_job_ends_in_the_same_bits(
    cluster: ProxiedCluster,
    corpus: Path,
    tmp_path: Path,
    undamaged: Bits,
    service: str,
    method: str,
    direction: str,
    passing: str,
    kind: str,
) -> None:
    proxy = cluster.proxy_of(service)
    is_piece = (method, direction) == ("Write", "up")
    least_bytes = PIECE_BYTES if is_piece else 0
    proxy.strike(Fault(f"/tiermesh.Files/{method}", direction, kind, int(passing), least_bytes))
    job = cluster.finish(cluster.submit(spec(corpus, tmp_path)))
    assert proxy.struck.is_set(), "the fault never happened"
    assert bits(job) == undamaged
    check_no_partial_files(cluster.folder)


@pytest.mark.parametrize(("role", "service"), [("worker", "Cluster"), ("aggregator", "Optimizer")])
def test_a_process_killed_amid_its_upload_leaves_nothing_and_its_successor_goes_on(
    cluster: ProxiedCluster, corpus: Path, tmp_path: Path, undamaged: Bits, role: str, service: str
) -> None:
    proxy = cluster.proxy_of(service)
    proxy.strike(Fault("/tiermesh.Files/Write", "up", "stalled", passing=1, least_bytes=PIECE_BYTES))
    job = cluster.submit(spec(corpus, tmp_path))
    assert proxy.struck.wait(LIMIT_SECONDS), "the upload never began"
    cluster.serving(role).kill()
    if role == "worker":
        cluster.workers.clear()
        cluster.start_worker()
    else:
        cluster.start_aggregator()
    assert bits(cluster.finish(job)) == undamaged
    check_no_partial_files(cluster.folder)


def check_no_partial_files(folder: Path) -> None:
    """Check that no upload has left a temporary file behind."""
    assert not list(folder.glob("*-state/files/.*"))
