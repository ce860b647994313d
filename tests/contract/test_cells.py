"""The worker's whole training step on real ttnn beside the emulator: every model, strategy and mesh.

What runs on a mocked board runs in a process of its own: ttnn takes its set-up from the environment when imported.
"""

from __future__ import annotations

import pytest

from services.errors import Refused
from tests.support.contract.board_runs import BoardRuns, Outcome, outcomes_of
from tests.support.contract.cells import CELLS, MESHES, fits, table
from tests.support.contract.golden import hold_to_page
from tests.support.contract.mocked_board import missing
from tests.support.contract.steps import STRATEGIES, device_config

REASON = missing()


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize("cell", CELLS)
def test_every_op_gives_what_ttnn_gives(cell: str, board_runs: BoardRuns) -> None:
    outcome = board_runs[cell]
    assert outcome.error is None, outcome.error
    assert outcome.calls > 0


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [(strategy, mesh) for strategy in STRATEGIES for mesh in MESHES if not fits(strategy, mesh)],
)
def test_what_is_no_cell_is_refused(strategy: str, mesh: tuple[int, int]) -> None:
    with pytest.raises((Refused, ValueError), match=r"device_config\.mesh_shape"):
        device_config(strategy, mesh)


def test_a_process_that_ends_says_in_which_cell() -> None:
    done = {"cell": "first", "calls": 7, "seconds": 1.0}
    lines = [{"begun": "first"}, done, {"begun": "second"}]
    first, second, third = outcomes_of(["first", "second", "third"], lines, "-11").values()
    assert first == Outcome(None, 7, 1.0)
    assert second.error == "the process ended in this cell, with -11"
    assert third.error == "the process ended in second, before this cell, with -11"
    assert outcomes_of(["first"], [], "1") == {"first": Outcome("the process ended before this cell, with 1")}


def test_the_page_has_the_table_of_this_run(board_runs: BoardRuns) -> None:
    passed = {cell: outcome.error is None for cell, outcome in board_runs.outcomes.items()}
    if passed.keys() != CELLS.keys():
        pytest.skip(f"{len(passed)} of {len(CELLS)} cells ran, the page has them all")
    hold_to_page("cells", table(passed))
