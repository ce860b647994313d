"""Tests of features: which of them a job needs, and how a peer that lacks one is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from services.config.load import load_job
from services.protocol import features
from services.protocol.features import FEATURES, Feature, find_lack, needed_features
from services.protocol.hello import Role, make_hello
from tests.support.outward.common import JOBS


def has_momentum(config: Mapping[str, Any]) -> bool:
    return bool(config["optimizer"].get("momentum"))


@pytest.fixture(autouse=True)
def two_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have features that a job may need and may not."""
    found = (Feature("momentum", "0.4", has_momentum), Feature("all jobs", "0.5", lambda config: True))
    monkeypatch.setattr(features, "FEATURES", found)


def test_a_job_needs_what_its_configuration_asks_for() -> None:
    assert needed_features({"optimizer": {"momentum": 0.9}}) == ("momentum", "all jobs")
    assert needed_features({"optimizer": {}}) == ("all jobs",)


def test_the_plan_of_a_job_names_what_it_needs() -> None:
    job, _ = load_job(JOBS / "mlp.yaml", ["optimizer.type=SGD", "optimizer.momentum=0.9"])
    assert job.plan().features == ("momentum", "all jobs")


def test_hello_names_all_features() -> None:
    assert [*make_hello(Role.WORKER, "w").features] == ["momentum", "all jobs"]


def test_the_first_feature_that_is_missing_is_named() -> None:
    assert find_lack("j", (), ()) is None
    assert find_lack("j", ("momentum",), ("all jobs", "momentum", "unknown")) is None
    lack = find_lack("j", ("momentum", "all jobs"), ("momentum",))
    assert str(lack) == "lacks feature all jobs, which job j needs; upgrade it to Tiermesh 0.5"


def test_names_differ_and_fit_into_hello() -> None:
    names = [each.name for each in FEATURES]
    assert len({*names}) == len(names) <= 64
    assert all(len(name.encode()) <= 32 for name in names)
