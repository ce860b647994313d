"""The soak figure: how growth is computed, and a short run of a real cluster."""

from __future__ import annotations

import pytest

from benchmarks.figures import soak
from services.errors import Failed


def test_growth_is_the_maximum_of_each_half() -> None:
    samples = {"a": [(0.0, 5), (1.0, 9), (2.0, 7), (4.0, 8)], "b": [(0.0, 1), (3.9, 4)]}
    assert soak.grown(samples) == {"a": (9, 8), "b": (1, 4)}


def test_a_role_that_is_absent_for_half_of_the_run_is_named() -> None:
    with pytest.raises(Failed, match=r"b: .*second half"):
        soak.grown({"a": [(0.0, 1), (4.0, 1)], "b": [(1.0, 1)]})


@pytest.mark.slow
def test_nothing_grows_in_three_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERMESH_BENCH_SOAK_SECONDS", "180")
    assert soak.run()
