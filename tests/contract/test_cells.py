"""The worker's training step on real ttnn and the emulator: every model, strategy and mesh.

Each mocked board runs in a process of its own, because ttnn reads its set-up from the environment at import.
`make test` runs a third of the cells (`Cell.in_make_test`), `make test-all` the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from services.errors import Refused
from tests.support.contract.board_runs import BoardRuns, Outcome, parse_outcomes
from tests.support.contract.cells import CELLS, MESHES, Cell, fits, format_table
from tests.support.contract.golden import assert_page_has_table
from tests.support.contract.mocked_board import missing_requirement
from tests.support.contract.steps import STRATEGIES, device_config
from tests.support.facts import has_facts

REASON = missing_requirement()


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize(
    "cell",
    [pytest.param(name, marks=() if cell.in_make_test else pytest.mark.long) for name, cell in CELLS.items()],
)
def test_ttnn_and_emulator_agree_on_every_call(cell: str, board_runs: BoardRuns) -> None:
    outcome = board_runs[cell]
    assert outcome.error is None, outcome.error
    assert outcome.calls > 0


@pytest.mark.parametrize(
    ("strategy", "mesh"),
    [(strategy, mesh) for strategy in STRATEGIES for mesh in MESHES if not fits(strategy, mesh)],
)
def test_strategies_that_do_not_fit_a_mesh_are_refused(strategy: str, mesh: tuple[int, int]) -> None:
    with pytest.raises((Refused, ValueError), match=r"device_config\.mesh_shape"):
        device_config(strategy, mesh)


def test_a_crash_names_its_cell() -> None:
    passed = {"cell": "first", "calls": 7, "seconds": 1.0}
    lines = [{"begun": "first"}, passed, {"begun": "second"}]
    first, second, third = parse_outcomes(["first", "second", "third"], lines, "-11").values()
    assert first == Outcome(None, 7, 1.0)
    assert second.error is not None and has_facts(second.error, "this cell ... -11")
    assert third.error is not None and has_facts(third.error, "second ... before this cell ... -11")
    (only,) = parse_outcomes(["first"], [], "1").values()
    assert only.error is not None and has_facts(only.error, "before this cell ... 1")


def test_make_test_runs_every_model_strategy_and_mesh() -> None:
    def facets(cells: Iterable[Cell]) -> set[object]:
        cells = list(cells)
        return {cell.model for cell in cells} | {(cell.strategy, cell.mesh, cell.board) for cell in cells}

    quick = [cell for cell in CELLS.values() if cell.in_make_test]
    assert facets(quick) == facets(CELLS.values())
    assert len(quick) < 0.4 * len(CELLS)


def test_the_page_lists_every_cell() -> None:
    assert_page_has_table("cells", format_table(dict.fromkeys(CELLS, True)))
