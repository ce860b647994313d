"""Many schedules of jobs that arrive, end and change on workers that come and go.

A failing seed prints the command that replays it. Run more with
`python -m tests.aggregator.core.scheduling --seeds 10000`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.aggregator.core.scheduling.mutations import MUTATIONS
from tests.aggregator.core.scheduling.simulated_jobs import COMMAND, run_seed
from tests.simulation.seeds import report_failure

SEEDS = 200
MUTATION_SEEDS = 300


def test_schedules_keep_the_invariants() -> None:
    happened: Counter[str] = Counter()
    failed = []
    for seed in range(SEEDS):
        outcome = run_seed(seed)
        happened += outcome.injected
        if outcome.problem:
            report_failure(seed, outcome.problem, COMMAND)
            failed.append(seed)
    assert not failed
    assert len(happened) == 10 and min(happened.values()) > SEEDS / 10, happened


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_mistake_fails_a_seed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    for seed in range(MUTATION_SEEDS):
        if problem := run_seed(seed).problem:
            print(f"seed {seed}: {problem}")
            assert problem.startswith("InvalidDecision"), problem
            return
    pytest.fail(f"{mutation.__name__} passes {MUTATION_SEEDS} seeds")
