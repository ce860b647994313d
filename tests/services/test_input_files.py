"""Tests that only regular files of bounded size are read, and that nothing waits for a writer."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from services.errors import Refused
from services.input_files import NoSuchFile, open_input_file, read_input_file

LIMIT_SECONDS = 30


def refusal(path: Path, limit_bytes: int = 100) -> str:
    """Return the refusal of a file; fail if it isn't refused, or if opening it waits."""
    texts: list[str] = []

    def read() -> None:
        with pytest.raises(Refused) as refused:
            read_input_file("training_config.data_path", path, limit_bytes)
        texts.append(str(refused.value))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    assert texts, f"{path}: still waiting after {LIMIT_SECONDS} s"
    assert texts[0].startswith("training_config.data_path: ")
    assert texts[0].isprintable() and len(texts[0]) <= 300
    return texts[0]


def test_pipes_devices_sockets_and_folders_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # a socket's path has at most 107 bytes
        server.bind("socket")
        assert "is a socket" in refusal(tmp_path / "socket")
    assert "is a pipe" in refusal(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    assert "is a pipe" in refusal(tmp_path / "link")
    assert "is a folder" in refusal(tmp_path)
    for device in ("/dev/zero", "/dev/null", "/dev/tty", "/dev/ptmx"):
        if Path(device).exists():
            assert "is a device" in refusal(Path(device))


def test_a_file_that_becomes_a_pipe_after_it_was_looked_at_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    looked_at = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda _: looked_at)
    with pytest.raises(Refused, match="is a pipe"):
        open_input_file("", path)


def test_large_files_are_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert f"has {1 << 40} bytes, expected at most 100 bytes" in refusal(path)
    assert "expected at most 10 bytes" in refusal(Path("/proc/self/maps"), 10)  # whose size is 0


def test_what_is_not_there_or_has_an_impossible_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (tmp_path / "none", tmp_path / "file" / "under"):
        with pytest.raises(NoSuchFile, match="no such file"):
            read_input_file("", path, 100)
    for path in (tmp_path / "a\0b", tmp_path / ("x" * 5000), loop):
        refusal(path)


def test_a_regular_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_input_file("", path, 100) == b"x" * 100
    with open_input_file("", path) as file:
        assert file.read() == b"x" * 100
        assert not os.get_inheritable(file.fileno())
