"""The code of a job's own model: the files of a folder as one file, which the cluster knows by its SHA-256.

    {"code":1,"files":[["mixer.py",2044],["mixing.py",812]]}\\n      names in order, with sizes
    ...                                                           the files' bytes, one after the other

The server checks names and modules. Here a folder is refused that has too much in it to be read.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tiermesh.errors import Refused, error_of

MOST_BYTES = 16 << 20
MOST_FILES = 1000
"""Largest number of files, and of folders."""
_DEEPEST = 32
_FIX = "name a folder with the model's code alone"


@dataclass(frozen=True)
class JobCode:
    """Code that goes with a job.

    Attributes:
        path: folder that it was read from.
        archive: its one file.
        sha256: SHA-256 of that.
    """

    path: str
    archive: bytes
    sha256: str

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> JobCode:
        """Read a folder and its subfolders, without hidden files and bytecode caches. Nothing is run.

        Raises:
            Refused: it is no folder; something in it is no regular file or can't be read; or there is too much of it.
        """
        root = Path(folder).absolute()
        files: dict[str, bytes] = {}
        left_bytes = MOST_BYTES
        try:
            for path in _walk(root):
                content = _read(path, left_bytes)
                left_bytes -= len(content)
                files[path.relative_to(root).as_posix()] = content
                if len(files) > MOST_FILES:
                    raise _too_much(root, f"at most {MOST_FILES} files")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise error_of("code", root, f"a readable folder ({reason})", "correct the path") from None
        names = sorted(files)
        listed = [[name, len(files[name])] for name in names]
        header = json.dumps({"code": 1, "files": listed}, separators=(",", ":"))
        archive = b"".join([header.encode(), b"\n", *(files[name] for name in names)])
        return cls(str(root), archive, hashlib.sha256(archive).hexdigest())


def _walk(root: Path) -> Iterator[Path]:
    """Yield the files below a folder; none is opened."""
    waiting, seen = [(root, 0)], 0
    while waiting:
        folder, depth = waiting.pop()
        seen += 1
        if seen > MOST_FILES or depth > _DEEPEST:
            raise _too_much(root, f"at most {MOST_FILES} folders, and {_DEEPEST} in each other")
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name == "__pycache__":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((Path(entry.path), depth + 1))
                else:
                    yield Path(entry.path)


def _read(path: Path, limit_bytes: int) -> bytes:
    # A link is not followed, and a pipe does not block.
    if not stat.S_ISREG(path.lstat().st_mode):
        raise error_of(
            "code", path, "files and folders alone", "remove it, or replace a link by what it names"
        )
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise _too_much(path, f"at most {MOST_BYTES} bytes of code")
    return content


def _too_much(path: Path, expected: str) -> Refused:
    return error_of("code", path, expected, _FIX)
