"""Runs the cells of each board once per session, in one process per board, and collects their outcomes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.contract.cells import CELLS
from tests.support.contract.mocked_board import BUILD, run_on_board


@dataclass(frozen=True)
class Outcome:
    """Outcome of a cell: error (None if it passed), number of calls, duration."""

    error: str | None
    calls: int = 0
    seconds: float = 0.0


class BoardRuns:
    """Outcomes of the wanted cells by id. A board runs when the first of its cells is looked up."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._wanted = wanted

    def __getitem__(self, cell: str) -> Outcome:
        if cell not in self.outcomes:
            board = CELLS[cell].board
            self.outcomes.update(_run(board, [name for name in self._wanted if CELLS[name].board == board]))
        return self.outcomes[cell]


def _run(board: str, cells: Sequence[str]) -> dict[str, Outcome]:
    BUILD.mkdir(parents=True, exist_ok=True)
    results = BUILD / f"{board}.jsonl"
    results.unlink(missing_ok=True)
    done = run_on_board(
        board, "-m", "tests.support.contract.cells_on_board", str(results), *cells, timeout_seconds=600
    )
    lines = results.read_text().splitlines() if results.exists() else []
    exit_text = f"{done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return parse_outcomes(cells, [json.loads(line) for line in lines], exit_text)


def parse_outcomes(
    cells: Sequence[str], lines: Sequence[Mapping[str, Any]], exit_text: str
) -> dict[str, Outcome]:
    """Return the outcome of each cell.

    Args:
        cells: ids of the cells that the process should have run.
        lines: records that cells_on_board.py wrote.
        exit_text: exit code and output of the process, the error of cells without a record.
    """
    outcomes = {
        line["cell"]: Outcome(line.get("error"), line.get("calls", 0), line["seconds"])
        for line in lines
        if "cell" in line
    }
    last = lines[-1].get("begun", "") if lines else ""
    for cell in cells:
        where = (
            "in this cell" if cell == last else f"in {last}, before this cell" if last else "before this cell"
        )
        outcomes.setdefault(cell, Outcome(f"the process ended {where}, with {exit_text}"))
    return outcomes
