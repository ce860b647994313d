"""The many_jobs figure: how growth is computed, and a short run of a real cluster."""

from __future__ import annotations

import pytest

from benchmarks.figures import many_jobs
from benchmarks.figures.many_jobs import Sample


def test_growth_compares_the_medians_of_the_first_and_the_last_quarter() -> None:
    sizes = [10, 11, 90, 12, 13, 14, 15, 16, 30, 31, 5, 32]
    samples = [Sample(number, {"worker": size}, {"worker": 1}) for number, size in enumerate(sizes)]
    assert many_jobs.grown_bytes(samples, "worker") == 31 - 11


@pytest.mark.slow
def test_nothing_grows_over_three_hundred_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIERMESH_BENCH_JOBS", "300")
    assert many_jobs.run()
