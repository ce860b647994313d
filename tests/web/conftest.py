"""An aggregator that answers from its attributes, and the API before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from protos import jobs_pb2
from services.files.store import FileStore
from tests.support.fake_aggregator import FakeAggregator, serving
from tests.support.web_server import Web, serving_web


@pytest.fixture(autouse=True)
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("web.bodies._DRAIN_SECONDS", 0.1)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAggregator]:
    fake = FakeAggregator()
    fake.store = FileStore(tmp_path / "aggregator")
    fake.jobs["job-1"] = jobs_pb2.Job(
        id="job-1",
        name="<b>mark",
        state=jobs_pb2.RUNNING,
        step=3,
        steps=10,
        submitted_seconds=1764237600.1234,
    )
    with serving(fake):
        yield fake


@pytest.fixture
def web(fake: FakeAggregator, tmp_path: Path) -> Iterator[Web]:
    with serving_web(tmp_path, fake.address) as web:
        yield web
