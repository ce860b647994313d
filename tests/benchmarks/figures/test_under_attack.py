"""The under_attack figure, with a short attack."""

from __future__ import annotations

import pytest

from benchmarks.figures import under_attack


@pytest.mark.long
def test_an_attacked_cluster_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    under_attack.run(seconds=10, idle=400)
    found = {}
    for line in capsys.readouterr().out.splitlines():
        if line.startswith("under_attack_"):
            name, _, value = line.partition(":")
            found[name] = float(value.split()[0])
    # The ratio of the steps' durations is left to `make bench`: here other tests run beside it.
    assert found["under_attack_memory_megabytes"] <= under_attack.MOST_MEGABYTES
    assert found["under_attack_answer_seconds"] <= 4 * under_attack.MOST_ANSWER_SECONDS
    assert found["under_attack_stop_seconds"] <= 35
