"""A file that is replaced is complete: the old one or the new one, also beside what a killed process has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from services import durable_files
from services.durable_files import PRIVATE_MODE, new_file, replace_file


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
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_gets_its_name_once_it_is_synchronised_and_then_its_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, temporary = tmp_path / "record", tmp_path / ".record.1"
    done: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _: done.append(f"file, named: {path.exists()}"))
    monkeypatch.setattr(durable_files, "sync_folder", lambda folder: done.append(f"folder {folder}"))
    with new_file(path, temporary, PRIVATE_MODE) as file:
        file.write(b"new")
        assert not path.exists() and temporary.stat().st_mode & 0o777 == PRIVATE_MODE
    assert done == ["file, named: False", f"folder {tmp_path}"]
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_block_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), new_file(tmp_path / "record", tmp_path / ".record") as file:
        file.write(b"half")
        raise ValueError("stop")
    assert not list(tmp_path.iterdir())
