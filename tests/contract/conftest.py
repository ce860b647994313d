"""Fixtures of the contract tests: shared runs on mocked boards, and a summary table of their cells."""

from __future__ import annotations

from typing import Any

import pytest

_RUNS = pytest.StashKey[Any]()


@pytest.fixture(scope="session")
def board_runs(request: pytest.FixtureRequest) -> Any:
    """Outcomes of the cells that this session selected. Each board runs once."""
    from tests.support.contract.board_runs import BoardRuns

    wanted = [
        item.callspec.params["cell"]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.originalname == "test_ttnn_and_emulator_agree_on_every_call"
    ]
    runs = BoardRuns(wanted)
    request.config.stash[_RUNS] = runs
    return runs


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the table of cells that ran on mocked boards."""
    runs = config.stash.get(_RUNS, None)
    if runs is not None and runs.outcomes:
        from tests.support.contract.cells import format_table

        terminalreporter.section("TTNN contract: one training step, op by op, on real ttnn and the emulator")
        for line in format_table({cell: outcome.error is None for cell, outcome in runs.outcomes.items()}):
            terminalreporter.write_line(line)
        seconds = sum(outcome.seconds for outcome in runs.outcomes.values())
        calls = sum(outcome.calls for outcome in runs.outcomes.values())
        terminalreporter.write_line(f"{len(runs.outcomes)} cells, {calls} calls, {seconds:.0f} s")
