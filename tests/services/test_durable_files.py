"""A file that is replaced is complete: the old one or the new one, also beside what a killed process has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services.durable_files import replace_file


def test_a_file_is_replaced_over_what_a_killed_process_left(tmp_path: Path) -> None:
    path = tmp_path / "record"
    (tmp_path / ".record").write_bytes(b"half of something long")
    replace_file(path, b"old")
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record"
    replace_file(path, b"old")

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="Input/output error"):
        replace_file(path, b"new")
    assert path.read_bytes() == b"old"
