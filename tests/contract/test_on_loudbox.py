"""Single calls on real ttnn beside the emulator, on a mocked LoudBox."""

from __future__ import annotations

import pytest
from mocked_board import missing, run_on

REASON = missing()


@pytest.mark.skipif(REASON is not None, reason=REASON or "")
@pytest.mark.parametrize("file", ["ops_on_loudbox.py", "widened_on_loudbox.py", "bites_on_loudbox.py"])
def test_on_the_loudbox(file: str) -> None:
    arguments = ("-q", "-p", "no:cacheprovider", "--timeout=200", f"tests/contract/{file}")
    done = run_on("loudbox", "-m", "pytest", *arguments)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{done.stderr[-2_000:]}"
    assert " passed" in done.stdout
