"""What came of the cells of each board: run once a session, in a process for each board."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.contract.cells import CELLS
from tests.support.contract.mocked_board import BUILD, run_on


@dataclass(frozen=True)
class Outcome:
    """Of a cell: what went wrong (None if nothing did), how many calls were made and how long it took."""

    error: str | None
    calls: int = 0
    seconds: float = 0.0


class BoardRuns:
    """Outcomes of the wanted cells, by id; a board's are found when the first of them is asked for."""

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
    done = run_on(
        board, "-m", "tests.support.contract.cells_on_board", str(results), *cells, timeout_seconds=600
    )
    written = results.read_text().splitlines() if results.exists() else []
    ended = f"{done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return outcomes_of(cells, [json.loads(line) for line in written], ended)


def outcomes_of(cells: Sequence[str], lines: Sequence[Mapping[str, Any]], ended: str) -> dict[str, Outcome]:
    """Outcomes of `cells` by what cells_on_board.py wrote; where it has nothing, how its process ended."""
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
        outcomes.setdefault(cell, Outcome(f"the process ended {where}, with {ended}"))
    return outcomes
