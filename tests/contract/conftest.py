"""The runs on mocked boards that tests of this folder share, and the table of what they gave."""

from __future__ import annotations

from typing import Any

import pytest

_RUNS = pytest.StashKey[Any]()


@pytest.fixture(scope="session")
def board_runs(request: pytest.FixtureRequest) -> Any:
    """Outcomes of the cells that this session's tests ask for, each board run once."""
    from tests.support.contract.board_runs import BoardRuns

    wanted = [
        item.callspec.params["cell"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_every_op_gives_what_ttnn_gives"
    ]
    runs = BoardRuns(wanted)
    request.config.stash[_RUNS] = runs
    return runs


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of cells that ran on mocked boards."""
    runs = config.stash.get(_RUNS, None)
    if runs is not None and runs.outcomes:
        from tests.support.contract.cells import table

        terminalreporter.section(
            "TTNN contract: one training step, op by op, on real ttnn beside the emulator"
        )
        for line in table({cell: outcome.error is None for cell, outcome in runs.outcomes.items()}):
            terminalreporter.write_line(line)
        seconds = sum(outcome.seconds for outcome in runs.outcomes.values())
        calls = sum(outcome.calls for outcome in runs.outcomes.values())
        terminalreporter.write_line(f"{len(runs.outcomes)} cells, {calls} calls, {seconds:.0f} s")
