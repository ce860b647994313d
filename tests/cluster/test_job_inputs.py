"""Data where it is needed: jobs whose files lie on the client alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cluster.bits import Bits, bits, gpt_config, spec_of, write_config
from tests.support.cluster.harness import Cluster, tiermesh


@pytest.fixture
def own(corpus: Path, tmp_path: Path) -> Path:
    """Return a copy of the corpus that the test may remove."""
    folder = tmp_path / "client"
    folder.mkdir()
    return Path(shutil.copy(corpus, folder))


@pytest.fixture(scope="module")
def expected(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Bits:
    """Return the result of a worker that has the files."""
    folder = tmp_path_factory.mktemp("expected")
    with Cluster(folder, workers=1) as cluster:
        return bits(cluster.finish(cluster.submit(spec_of(folder, small(corpus)))))


def small(corpus: Path) -> dict[str, object]:
    return gpt_config(corpus, max_steps=2, gradient_accumulation_steps=2)


def submit_and_remove(cluster: Cluster, own: Path) -> str:
    """Submit a job by the command, and remove its corpus from this host; return the job's id."""
    config = write_config(own.parent, small(own))
    done = tiermesh("submit", config, "--aggregator", cluster.to_aggregator.address)
    assert done.returncode == 0, done.stderr
    assert "uploaded 0.0 MB" in done.stderr
    own.unlink()
    return done.stdout.strip()


def test_workers_with_empty_disks_join_a_job_whose_corpus_the_client_has(
    tmp_path: Path, own: Path, expected: Bits
) -> None:
    with Cluster(tmp_path) as cluster:
        job = submit_and_remove(cluster, own)
        for name in ("a", "b"):
            cluster.start_worker("--cache-dir", tmp_path / f"cache-{name}", wait=False)
        assert bits(cluster.finish(job)) == expected
