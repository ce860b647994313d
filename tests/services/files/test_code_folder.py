"""Reading folders of code: what is left out, and what is refused by name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from services.errors import Refused
from services.files.code_archive import pack_code
from services.files.code_folder import read_code_folder, write_code_folder
from services.input_files import open_input_file

FILES = {"mixer.py": b"x = 1\n", "layers/deep/one.txt": b"", "layers/words.json": b"[]"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_code_folder(tmp_path / "code", FILES)
    return tmp_path / "code"


def test_what_is_written_is_read(folder: Path) -> None:
    assert read_code_folder(folder) == FILES


def test_hidden_files_and_caches_of_bytecode_are_left_out(folder: Path) -> None:
    write_code_folder(folder / ".git", {"config": b"x"})
    write_code_folder(folder / "layers" / "__pycache__", {"one.pyc": b"x"})
    (folder / ".secret").write_text("x")
    (folder / ".link").symlink_to("/etc/passwd")
    assert read_code_folder(folder) == FILES


def bind(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # a socket's path has at most 107 bytes
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "is a symbolic link"),
        (lambda path: path.symlink_to("."), "is a symbolic link"),
        (lambda path: path.symlink_to("absent"), "is a symbolic link"),
        (os.mkfifo, "is a pipe, expected a regular file"),
        (bind, "is a socket, expected a regular file"),
        (lambda path: (path.parent / "odd").rename(path), "expected a printable name"),
    ],
    ids=["link to a file", "link to a folder", "link to nothing", "pipe", "socket", "name"],
)
def test_what_is_no_file_is_refused_by_name(
    folder: Path, make: Callable[[Path], object], reason: str
) -> None:
    (folder / "odd").write_text("")
    name = "odd\n.py" if "name" in reason else "layers/odd.txt"
    make(folder / name)
    with pytest.raises(Refused, match=reason) as refused:
        pack_code(read_code_folder(folder))
    assert "odd" in str(refused.value) and "\n" not in str(refused.value)


def test_a_link_counts_as_its_file_where_links_are_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "there.py").write_text("y = 2\n")
    (folder / "linked.py").symlink_to(tmp_path / "there.py")
    assert read_code_folder(folder, links=True)["linked.py"] == b"y = 2\n"
    (folder / "here").symlink_to(".")
    with pytest.raises(Refused, match="here: is a symbolic link"):
        read_code_folder(folder, links=True)


@pytest.mark.parametrize("place", ["", "layers", "mixer.py"])
def test_what_can_not_be_read_is_refused_by_name(
    folder: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_scan, real_open = os.scandir, os.open

    def refuse(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: Path, *rest: object) -> object:
            if Path(path) == folder / place:
                raise PermissionError(13, "Permission denied")
            return real(path, *rest)

        return call

    monkeypatch.setattr(os, "scandir", refuse(real_scan))
    monkeypatch.setattr(os, "open", refuse(real_open))
    with pytest.raises(Refused, match=rf"{place}: can't be read \(Permission denied\)"):
        read_code_folder(folder)


def test_a_folder_that_is_none_is_refused(folder: Path) -> None:
    for path in (folder / "absent", folder / "mixer.py", Path("/dev/zero"), Path("a\0b")):
        with pytest.raises(Refused, match="can't be read"):
            read_code_folder(path)


def test_too_much_is_refused_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "weights.bin").open("wb") as file:
        file.truncate(1 << 40)  # sparse
    with pytest.raises(Refused, match=r"weights\.bin: with it the code has more than 16777216 bytes"):
        read_code_folder(folder)
    (folder / "weights.bin").unlink()
    for number in range(2100):
        (folder / f"m{number}.py").touch()
    read: list[Path] = []
    monkeypatch.setattr(
        "services.files.code_folder.read_unchanging", lambda path, _: read.append(path) or b""
    )
    with pytest.raises(Refused, match="more than 1000 files"):
        read_code_folder(folder)
    assert not read, "a folder of 100,000 files is not even listed as a whole"


def test_folders_in_each_other_are_bounded(folder: Path) -> None:
    (folder / Path(*["d"] * 40)).mkdir(parents=True)
    with pytest.raises(Refused, match="or of more than 32 in each other"):
        read_code_folder(folder)


class ChangingFile:
    """A file that grows with each read of it."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path = file, path

    def __enter__(self) -> ChangingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fileno(self) -> int:
        return self._file.fileno()

    def read(self, limit_bytes: int) -> bytes:
        content = self._file.read(limit_bytes)
        with self._path.open("ab") as other:
            other.write(b"more")
        return content


def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = open_input_file
    monkeypatch.setattr(
        "services.files.code_folder.open_input_file", lambda name, path: ChangingFile(real(name, path), path)
    )
    with pytest.raises(Refused, match="has changed while it was read"):
        read_code_folder(folder)
