"""The bar over the reading of large corpora."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from cli import reading_progress
from cli.output import Output
from cli.reading_progress import show_reading
from services.config.corpus import summarize_text_file
from services.corpora.token_file import describe_token_file


@pytest.mark.parametrize(
    ("terminal", "as_json", "shown"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_it_is_shown_to_people_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminal: bool,
    as_json: bool,
    shown: bool,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1") if terminal else monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(reading_progress, "PATIENCE_SECONDS", 0.0)
    np.arange(3 << 20).astype("<u4").tofile(tmp_path / "ids.u32.bin")
    monkeypatch.setenv("TIERMESH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ids.csv").write_text("1,2\n" * 300_000)
    (tmp_path / "text.txt").write_text("a line\n" * 300_000)
    with show_reading(Output(as_json)):
        describe_token_file(tmp_path / "ids.u32.bin", "data_path")
        describe_token_file(tmp_path / "ids.csv", "data_path")
        summarize_text_file(tmp_path / "text.txt", "data_path")
    printed = capsys.readouterr()
    for name in ("ids.u32.bin", "ids.csv", "text.txt"):
        assert (f"reading {name}" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.err)) == shown, name
    assert printed.out == "" and (shown or printed.err == "")


def test_a_file_that_is_read_soon_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(reading_progress, "PATIENCE_SECONDS", 600.0)  # the machine may be busy
    np.arange(100).astype("<u4").tofile(tmp_path / "ids.u32.bin")
    with show_reading(Output()):
        describe_token_file(tmp_path / "ids.u32.bin", "data_path")
    assert capsys.readouterr().err == ""
