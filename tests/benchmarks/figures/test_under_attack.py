"""The under_attack figure, with a short attack."""

from __future__ import annotations

import pytest

from benchmarks.figures import under_attack
from services.timeouts import STANDARD_TIMEOUTS

FIGURES = ("step_ratio", "memory_megabytes", "answer_seconds", "stop_seconds")


@pytest.mark.long
def test_an_attacked_cluster_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    under_attack.run(seconds=10, idle=400)
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("under_attack_"):
            name, _, value = line.partition(":")
            found[name] = float(value.split()[0])
    # How long steps and answers take is left to `make bench`: here other tests run beside it. That there are steps and
    # answers, `run` has checked.
    assert set(found) == {f"under_attack_{name}" for name in FIGURES}
    assert found["under_attack_memory_megabytes"] <= under_attack.MOST_MEGABYTES
    assert found["under_attack_stop_seconds"] <= STANDARD_TIMEOUTS.kill
