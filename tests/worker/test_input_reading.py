"""The reading of a job's inputs during its build: told now and then, and ended with the build."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.core import events as ev
from worker.input_reading import LOG_SECONDS, TELL_SECONDS, BuildDropped, InputReading

MB = 1_000_000


def test_how_far_it_is_over_all_files_is_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    told: list[ev.Input] = []
    now = 100.0
    reading = InputReading("a", told.append, lambda: now)
    reading.watch(Path("a.bin"), 1, 10 * MB)
    assert told == [], "most files are read at once"
    now += TELL_SECONDS
    reading.watch(Path("a.bin"), 10 * MB, 10 * MB)
    reading.watch(Path("b.bin"), MB, 20 * MB)
    now += LOG_SECONDS
    reading.watch(Path("b.bin"), 2 * MB, 20 * MB)
    field = "training_config.data_path"
    assert told == [
        ev.Fetching("a", field, 10 * MB, 10 * MB, local=True),
        ev.Fetching("a", field, 12 * MB, 30 * MB, local=True),
    ]
    assert caplog.messages == ["job a: reading b.bin, 2 of 20 MB"]


def test_a_dropped_build_reads_no_further() -> None:
    reading = InputReading("a", lambda event: None, lambda: 0.0)
    reading.watch(Path("a.bin"), 1, 2)
    reading.drop()
    with pytest.raises(BuildDropped):
        reading.watch(Path("a.bin"), 2, 2)
