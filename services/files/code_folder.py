"""Reading and writing folders of code. What a folder holds is read as bytes, and never run."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from services.errors import Refused
from services.files.code_archive import (
    MOST_CODE_BYTES,
    MOST_CODE_FILES,
    CodeFiles,
    check_file_count,
    is_left_out,
)
from services.input_files import open_input_file
from services.printable import printable_path

_MOST_FOLDERS = MOST_CODE_FILES
_DEEPEST = 32
"""Maximum number of folders in each other."""


def read_code_folder(folder: Path, *, links: bool = False) -> CodeFiles:
    """Return the files of a folder and its subfolders, without hidden ones and bytecode caches.

    Args:
        folder: the folder.
        links: whether a symbolic link to a file counts as the file. Links to folders are refused in any case.

    Raises:
        Refused: it is no folder; something in it is no regular file, can't be read, or changes meanwhile; or there is
            too much of it.
    """
    files: dict[str, bytes] = {}
    size_bytes = 0
    for path in _walk(folder, links):
        check_file_count(len(files) + 1)
        content = read_unchanging(path, MOST_CODE_BYTES - size_bytes)
        size_bytes += len(content)
        files[path.relative_to(folder).as_posix()] = content
    return files


def write_code_folder(folder: Path, files: CodeFiles) -> None:
    """Write files into a new folder; they survive power loss once this returns.

    Args:
        folder: the folder, which is created.
        files: the files, of an archive that was checked.

    Raises:
        OSError: they can't be written.
    """
    folder.mkdir(parents=True)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def read_unchanging(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a regular file that nobody changes meanwhile.

    Raises:
        Refused: it can't be read, is none, is too large, or has changed.
    """
    with open_input_file("", path) as file:
        before = os.fstat(file.fileno())
        if before.st_size > limit_bytes:
            raise _too_large(path)
        try:
            content: bytes | None = file.read(limit_bytes + 1)
        except OSError as error:
            raise Refused(
                f"{printable_path(path)}: can't be read ({error.strerror}); repair the disk"
            ) from None
        after = os.fstat(file.fileno())
    if content is None or len(content) > limit_bytes:
        raise _too_large(path)
    if len(content) != before.st_size or _stamp(before) != _stamp(after):
        raise Refused(f"{printable_path(path)}: has changed while it was read; try again once it is saved")
    return content


def _too_large(path: Path) -> Refused:
    return Refused(
        f"{printable_path(path)}: with it the code has more than {MOST_CODE_BYTES} bytes; name a folder with the "
        "model's code alone"
    )


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def _walk(folder: Path, links: bool) -> Iterator[Path]:
    """Yield the files below a folder in the order of their names; it opens none."""
    waiting, seen = [(folder, 0)], 0
    while waiting:
        here, depth = waiting.pop()
        seen += 1
        if seen > _MOST_FOLDERS or depth > _DEEPEST:
            raise Refused(
                f"{printable_path(here)}: is one of more than {_MOST_FOLDERS} folders, or of more than {_DEEPEST} in "
                "each other; name a folder with the model's code alone"
            )
        for path, mode in _list(here, links):
            if stat.S_ISDIR(mode):
                waiting.append((path, depth + 1))
            else:
                yield path


def _list(folder: Path, links: bool) -> list[tuple[Path, int]]:
    """Return what is in a folder, with modes; at most so many entries are looked at as a folder of code may have."""
    found: list[tuple[Path, int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if is_left_out(entry.name):
                    continue
                path = Path(entry.path)
                mode = entry.stat(follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode) and links and not entry.is_dir():
                    mode = entry.stat().st_mode
                if stat.S_ISLNK(mode):
                    raise Refused(
                        f"{printable_path(path)}: is a symbolic link, expected files and folders; replace it by "
                        "what it names"
                    )
                found.append((path, mode))
                if len(found) > MOST_CODE_FILES + _MOST_FOLDERS:
                    check_file_count(len(found))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(f"{printable_path(folder)}: can't be read ({reason}); correct the path") from None
    return sorted(found)
