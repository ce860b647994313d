"""The caps of an aggregator are refused in one line, with exit code 2, before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.main import main
from services.caps import (
    MOST_DOWNLOAD_MB_PER_SECOND,
    MOST_JOBS,
    MOST_LOG_MB,
    MOST_PARAMETERS,
    MOST_RUNNING_JOBS,
    MOST_UPLOAD_GB,
    MOST_UPLOADS,
    MOST_WORKERS_PER_PERSON,
)
from services.printable import LINE_CHARACTERS

BOUNDS = {
    "--max-queued-jobs": MOST_JOBS,
    "--max-jobs-per-person": MOST_JOBS,
    "--max-log-mb": MOST_LOG_MB,
    "--max-download-mb-per-second": MOST_DOWNLOAD_MB_PER_SECOND,
    "--max-uploads": MOST_UPLOADS,
    "--max-uploads-per-person": MOST_UPLOADS,
    "--max-upload-gb": MOST_UPLOAD_GB,
    "--max-upload-gb-per-person": MOST_UPLOAD_GB,
    "--max-parameters": MOST_PARAMETERS,
    "--max-running-jobs": MOST_RUNNING_JOBS,
    "--max-workers-per-person": MOST_WORKERS_PER_PERSON,
}


@pytest.mark.parametrize("option", BOUNDS)
@pytest.mark.parametrize(
    "value", ["0", "-1", "{beyond}", "9" * 5000, "1.5", "nan", "inf", "many", "", "1\x1b[2J", "0x10"]
)
def test_a_value_out_of_range_is_refused(
    option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    value = value.format(beyond=BOUNDS[option] + 1)
    assert main(["aggregator", "--state-dir", str(state), option, value]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert option in line and len(line) <= LINE_CHARACTERS and line.isprintable()
    if value in ("0", "-1", str(BOUNDS[option] + 1)):
        assert line.count(f"{value} given, expected a whole number from 1 to {BOUNDS[option]}") == 1
    assert not state.exists()
