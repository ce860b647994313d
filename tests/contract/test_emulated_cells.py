"""The training step makes the same calls for each dtype, and those of the golden files. Needs no ttnn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import mesh.emulator as emulator
from tests.support.contract.cells import CELLS, Cell, run_cell
from tests.support.contract.golden import GOLDEN, assert_matches_golden
from tests.support.contract.lock_step import LockStep


class RecordedEmulator(LockStep):
    """Recorder of calls on the emulator alone."""

    __name__ = "mesh.emulator"


FAST_MESHES = ((1, 1), (1, 8), (2, 4))
"""Meshes that together allow every strategy. Other meshes take long and rarely find more."""


def marks_of(cell: Cell) -> Any:
    if cell.mesh not in FAST_MESHES:
        return pytest.mark.slow
    return () if cell.in_make_test or cell.golden is not None else pytest.mark.long


@pytest.mark.parametrize("cell", [pytest.param(name, marks=marks_of(cell)) for name, cell in CELLS.items()])
def test_float32_makes_the_calls_of_bfloat16(cell: str, tmp_path: Path) -> None:
    lines = run_cell(CELLS[cell], RecordedEmulator(emulator), "bfloat16", tmp_path)
    name = CELLS[cell].golden
    if name is not None:
        assert_matches_golden(name, lines)
    # Reading bfloat16 takes an extra cast on the host.
    on_device = [line for line in lines if not line.startswith("to_dtype(")]
    in_float32 = run_cell(CELLS[cell], RecordedEmulator(emulator), "float32", tmp_path)
    assert [without_dtype(line) for line in on_device] == [without_dtype(line) for line in in_float32]


def without_dtype(line: str) -> str:
    return re.sub("BFLOAT16|FLOAT32", "FLOAT", line)


def test_every_golden_file_has_a_cell() -> None:
    names = {cell.golden for cell in CELLS.values()}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == names - {None}
