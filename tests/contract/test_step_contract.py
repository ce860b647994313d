"""Real ttnn on a mocked LoudBox beside the emulator: op by op, and through the worker's whole training step.

What runs on the LoudBox runs in a process of its own: ttnn takes its set-up from the environment when it is imported.
"""

from __future__ import annotations

import pytest
from loudbox import missing, run_on_loudbox

REASON = missing()


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize("file", ["ops_on_loudbox.py", "widened_on_loudbox.py", "step_on_loudbox.py"])
def test_on_the_loudbox(file: str) -> None:
    done = run_on_loudbox(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=200", f"tests/contract/{file}"
    )
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
    assert " passed" in done.stdout
