"""Fixtures for tests of the command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.corpora import cache
from tests.support.fake_aggregator import FakeAggregator, serving
from tests.support.gated_model import Gate

JOB = """
training_config:
  project_name: tiny
  seed: 1
  model_type: linear_regression
  max_steps: 10
  batch_size: 4
linear_regression_config:
  num_features: 4
  num_targets: 2
  training_samples: 200
"""


@pytest.fixture
def aggregator() -> Iterator[FakeAggregator]:
    with serving(FakeAggregator()) as fake:
        yield fake


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    with closing(Gate(tmp_path)) as gate:
        yield gate


@pytest.fixture(autouse=True)
def no_flags_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIERMESH_") and name != cache.VARIABLE]:
        monkeypatch.delenv(name)
