"""The worker's whole training step on real ttnn beside the emulator: every model, strategy and mesh.

What runs on a mocked board runs in a process of its own: ttnn takes its set-up from the environment when imported.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from board_runs import BoardRuns
from cells import CELLS, MESHES, table, unfit
from mocked_board import missing
from steps import STRATEGIES, device_config

from services.errors import Refused

REASON = missing()
PAGE = Path(__file__).resolve().parents[2] / "docs" / "contract.md"


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize("cell", CELLS)
def test_every_op_gives_what_ttnn_gives(cell: str, board_runs: BoardRuns) -> None:
    outcome = board_runs[cell]
    assert outcome.error is None, outcome.error
    assert outcome.calls > 0


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [(strategy, mesh) for strategy in STRATEGIES for mesh in MESHES if unfit(strategy, mesh) is not None],
)
def test_what_is_no_cell_is_refused(strategy: str, mesh: tuple[int, int]) -> None:
    with pytest.raises((Refused, ValueError), match=r"device_config\.mesh_shape"):
        device_config(strategy, mesh)


def test_the_page_has_the_table_of_this_run(board_runs: BoardRuns) -> None:
    passed = {cell: outcome.error is None for cell, outcome in board_runs.outcomes.items()}
    if passed.keys() != CELLS.keys():
        pytest.skip(f"{len(passed)} of {len(CELLS)} cells ran, the page has them all")
    _, _, rest = PAGE.read_text().partition("<!-- cells -->\n")
    printed, end, _ = rest.partition("<!-- end of cells -->")
    assert end, f"{PAGE.name} has no place for the table of cells"
    assert printed.strip().splitlines() == table(passed), (
        "the table in docs/contract.md is not that of this run; put in what is printed at the end of the run"
    )
