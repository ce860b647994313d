"""The training step calls the same ops whatever the dtype, and those of the golden files (without ttnn, too)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cells import CELLS, Cell
from golden import GOLDEN, hold_to_golden
from pair import LockStep
from steps import device_config, opened, run_step

import mesh.emulator as emulator


class Emulator(LockStep):
    """The emulator alone, recorded."""

    __name__ = "mesh.emulator"


def recorded(cell: Cell, dtype: str, folder: Path) -> list[str]:
    module = Emulator(emulator)
    device = device_config(cell.strategy, cell.mesh)
    with opened(module, device, dtype) as mesh:
        module.start()
        run_step(cell.model, device, mesh, folder)
        return list(module.lines)


@pytest.mark.parametrize("cell", CELLS)
def test_a_float32_run_is_the_bfloat16_run_op_for_op(cell: str, tmp_path: Path) -> None:
    lines = recorded(CELLS[cell], "bfloat16", tmp_path)
    name = CELLS[cell].golden
    if name is not None:
        hold_to_golden(name, lines)
    # Reading bfloat16 back takes a cast on the host, which is no op of the step.
    on_device = [line for line in lines if not line.startswith("to_dtype(")]
    assert [as_one_dtype(line) for line in on_device] == [
        as_one_dtype(line) for line in recorded(CELLS[cell], "float32", tmp_path)
    ]


def as_one_dtype(line: str) -> str:
    return re.sub("BFLOAT16|FLOAT32", "FLOAT", line)


def test_every_golden_file_is_held_to() -> None:
    names = {cell.golden for cell in CELLS.values()}
    assert {path.stem for path in GOLDEN.glob("*.txt")} == names - {None}
