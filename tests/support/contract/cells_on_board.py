"""Runs cells on a mocked board, emulator and ttnn in lock-step. Run by board_runs.py, in a process of its own.

    python cells_on_board.py RESULTS CELL...

Writes a JSON line to the file RESULTS as each cell begins and as it ends, so that a crash shows where it was.
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
from tests.support.contract.cells import CELLS, Cell, run
from tests.support.contract.golden import hold_to_golden
from tests.support.contract.lock_step import LockStep


def held(cell: Cell, folder: Path) -> int:
    """Run a cell; the number of calls that both modules took alike. Raises whatever is wrong."""
    lines = run(cell, LockStep(emulator, ttnn), "bfloat16", folder)
    if cell.golden is not None:
        hold_to_golden(cell.golden, lines)
    return len(lines)


def main(results: Path, cells: list[str]) -> None:
    with results.open("w") as out, tempfile.TemporaryDirectory() as folder:
        for name in cells:
            print(json.dumps({"begun": name}), file=out, flush=True)
            begun = time.perf_counter()
            answer: dict[str, object] = {"cell": name}
            try:
                answer["calls"] = held(CELLS[name], Path(folder))
            except Exception as error:
                shown = traceback.format_exception_only(error) + traceback.format_tb(error.__traceback__)
                answer["error"] = "".join(shown)
            answer["seconds"] = time.perf_counter() - begun
            print(json.dumps(answer), file=out, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
