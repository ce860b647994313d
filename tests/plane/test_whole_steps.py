"""Steps through real planes have the bits of plain numpy, in any order; each planted mistake of a plane is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.plane.plane_mutations import PLANE_MUTATIONS
from tests.plane.whole_steps import run_seed

SEEDS = range(5)
MOST_SEEDS = 40
"""Number of seeds in which a mistake must be found."""


@pytest.mark.parametrize("seed", SEEDS)
def test_steps_in_any_order_have_the_bits_of_plain_numpy(seed: int, tmp_path: Path) -> None:
    run_seed(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("mutate", PLANE_MUTATIONS)
def test_each_mistake_of_a_plane_is_found(
    mutate: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    for seed in range(MOST_SEEDS):
        try:
            run_seed(seed, tmp_path)
        except Exception:
            return
    pytest.fail(f"no seed below {MOST_SEEDS} finds it")
