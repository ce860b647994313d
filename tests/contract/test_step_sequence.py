"""The training step calls the same ops whatever the dtype, and those of the golden files (without ttnn, too)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pair import LockStep
from steps import MODELS, hold_to_golden, run_step

import mesh.emulator as emulator
from mesh.device import open_mesh


class Emulator(LockStep):
    """The emulator alone, recorded."""

    __name__ = "mesh.emulator"


def recorded(model: str, dtype: str, folder: Path) -> list[str]:
    module = Emulator(emulator)
    with open_mesh((1, 8), module=module, dtype=dtype, enable_ddp=True) as mesh:
        module.lines.clear()
        run_step(model, mesh, folder)
        return list(module.lines)


@pytest.mark.parametrize("model", MODELS)
def test_a_float32_run_is_the_bfloat16_run_op_for_op(model: str, tmp_path: Path) -> None:
    lines = recorded(model, "bfloat16", tmp_path)
    hold_to_golden(model, lines)
    # Reading bfloat16 back takes a cast on the host, which is no op of the step.
    on_device = [line for line in lines if not line.startswith("to_dtype(")]
    assert [as_one_dtype(line) for line in on_device] == [
        as_one_dtype(line) for line in recorded(model, "float32", tmp_path)
    ]


def as_one_dtype(line: str) -> str:
    return re.sub("BFLOAT16|FLOAT32", "FLOAT", line)
