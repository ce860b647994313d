"""The slow_uploads figure, with few uploads."""

from __future__ import annotations

import pytest

from benchmarks.figures import slow_uploads


@pytest.mark.long
def test_slow_uploads_hold_up_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    slow_uploads.run(uploads=2)
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("slow_uploads_seconds_more: ") and line.endswith("(to reach: <= 2)")
    assert float(line.split()[1]) < slow_uploads.BYTE_SECONDS  # other tests run beside it
