"""Ranges of a model's blocks on emulator and ttnn in lock-step. Started by test_ranges_contract.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import ttnn

import mesh.emulator as emulator
from tests.support.contract.lock_step import LockStep
from tests.support.contract.ranges import CASES, run_whole_and_ranges


@pytest.mark.parametrize(("model", "strategy", "mesh"), [case for case in CASES if case[2] != (1, 1)])
def test_ttnn_and_emulator_agree_on_every_call(
    model: str, strategy: str, mesh: tuple[int, int], tmp_path: Path
) -> None:
    whole, parts = run_whole_and_ranges(model, strategy, mesh, LockStep(emulator, ttnn), tmp_path)
    assert parts == whole
