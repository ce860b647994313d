"""The training step calls the same ops whatever the dtype, and those of the golden files (without ttnn, too)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import mesh.emulator as emulator
from tests.support.contract.cells import CELLS, run
from tests.support.contract.golden import GOLDEN, hold_to_golden
from tests.support.contract.lock_step import LockStep


class Emulator(LockStep):
    """The emulator alone, recorded."""

    __name__ = "mesh.emulator"


USUAL = ((1, 1), (1, 8), (2, 4))
"""Meshes on which every strategy runs; the same on others takes longer than it tells."""


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(name, marks=() if cell.mesh in USUAL else pytest.mark.slow)
        for name, cell in CELLS.items()
    ],
)
def test_a_float32_run_is_the_bfloat16_run_op_for_op(cell: str, tmp_path: Path) -> None:
    lines = run(CELLS[cell], Emulator(emulator), "bfloat16", tmp_path)
    name = CELLS[cell].golden
    if name is not None:
        hold_to_golden(name, lines)
    # Reading bfloat16 back takes a cast on the host, which is no op of the step.
    on_device = [line for line in lines if not line.startswith("to_dtype(")]
    in_float32 = run(CELLS[cell], Emulator(emulator), "float32", tmp_path)
    assert [as_one_dtype(line) for line in on_device] == [as_one_dtype(line) for line in in_float32]


def as_one_dtype(line: str) -> str:
    return re.sub("BFLOAT16|FLOAT32", "FLOAT", line)


def test_every_golden_file_is_held_to() -> None:
    names = {cell.golden for cell in CELLS.values()}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == names - {None}
