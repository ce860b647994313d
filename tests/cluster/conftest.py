"""Fixtures of the cluster tests: jobs, an undisturbed result, and the daemons' logs after a failure."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.cluster.bits import Bits, bits, gpt_config, regression_config, spec_of, write_corpus
from tests.support.cluster.harness import Cluster

LOG_CHARACTERS = 8000


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def gpt_spec(corpus: Path) -> str:
    return spec_of(corpus.parent, gpt_config(corpus))


@pytest.fixture(scope="session")
def long_spec(corpus: Path) -> str:
    """Return a job with more steps than any test waits for. It ends when it is cancelled or its cluster stops."""
    return spec_of(corpus.parent, gpt_config(corpus, project_name="long", max_steps=100_000))


@pytest.fixture(scope="session")
def short_spec(corpus: Path) -> str:
    return spec_of(corpus.parent, regression_config())


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, gpt_spec: str) -> Bits:
    """Return the result of one worker in 2 tiers without any fault."""
    with Cluster(tmp_path_factory.mktemp("undisturbed"), workers=1) as cluster:
        return bits(cluster.finish(cluster.submit(gpt_spec)))


def pytest_runtest_setup() -> None:
    Cluster.known[:] = [cluster for cluster in Cluster.known if not cluster.closed]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for daemon in [daemon for cluster in Cluster.known for daemon in cluster.daemons]:
            code = daemon.process.poll()
            state = "still runs" if code is None else f"exit code {code}"
            title = f"log of {daemon.name}, process {daemon.process.pid}, {state}"
            report.sections.append((title, daemon.log_text()[-LOG_CHARACTERS:]))
    return report
