"""Runs cells on a mocked board, emulator and ttnn in lock-step. Started by board_runs.py in its own process.

    python -m tests.support.contract.cells_on_board RESULTS CELL...

Writes a JSON line to the file RESULTS when each cell begins and ends, so that a crash shows its cell.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

import ttnn

import mesh.emulator as emulator
from tests.support.contract.cells import CELLS, Cell, run_cell
from tests.support.contract.golden import assert_matches_golden
from tests.support.contract.lock_step import LockStep


def check_cell(cell: Cell, folder: Path) -> int:
    """Run a cell and return the number of calls on which both modules agreed. Raises on any difference."""
    lines = run_cell(cell, LockStep(emulator, ttnn), "bfloat16", folder)
    if cell.golden is not None:
        assert_matches_golden(cell.golden, lines)
    return len(lines)


def main(results: Path, cells: list[str]) -> None:
    with results.open("w") as out, tempfile.TemporaryDirectory() as folder:
        for name in cells:
            print(json.dumps({"begun": name}), file=out, flush=True)
            started = time.perf_counter()
            answer: dict[str, object] = {"cell": name}
            try:
                answer["calls"] = check_cell(CELLS[name], Path(folder))
            except Exception as error:
                shown = traceback.format_exception_only(error) + traceback.format_tb(error.__traceback__)
                answer["error"] = "".join(shown)
            answer["seconds"] = time.perf_counter() - started
            print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
