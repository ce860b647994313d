"""A folder of code as one file: what `submit --code` sends, and what a worker keeps of a job's own model.

    {"code":1,"files":[["mixer.py",2044],["mixing.py",812]]}\\n      names in order, with sizes
    ...                                                           the files' bytes, one after the other

Each set of files has exactly one archive, so its SHA-256 names the code. Nothing is executed when one is read, and an
archive has no links, modes or times that could mean anything to the reader.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from itertools import pairwise

from services.errors import Refused
from services.json_text import JsonKind, parse_json
from services.printable import printable

MOST_CODE_BYTES = 16 << 20
"""Maximum size of all files of an archive together."""
MOST_CODE_FILES = 1000
MOST_NAME_CHARACTERS = 200
"""Longest name of a file, with its folders."""
_HEADER = JsonKind("list of an archive's files", 1 << 20, 3 * MOST_CODE_FILES + 8)
MOST_ARCHIVE_BYTES = MOST_CODE_BYTES + _HEADER.limit_bytes
SHIPPED_PACKAGES = frozenset(
    {
        "aggregator",
        "cli",
        "compute",
        "mesh",
        "native",
        "optimizer",
        "plane",
        "protos",
        "services",
        "tiermesh",
        "training",
        "web",
        "worker",
    }
)
"""Packages of Tiermesh, which an own model imports but does not own."""
RESERVED_NAMES = SHIPPED_PACKAGES | sys.stdlib_module_names
"""Names of modules that no code of a job replaces."""
_VERSION = 1
_NOT_CODE = "__pycache__"

CodeFiles = Mapping[str, bytes]
"""Contents of files by their names, which are paths with `/`, relative to the folder."""


def is_left_out(name: str) -> bool:
    """Return whether a file or folder is no part of the code: hidden ones, and Python's bytecode caches."""
    return name.startswith(".") or name == _NOT_CODE


def pack_code(files: CodeFiles) -> bytes:
    """Return the archive of some files.

    Raises:
        Refused: there are none or too many, they are too large, or a name is not allowed.
    """
    names = sorted(files)
    _check_names(names)
    _check_size(sum(len(files[name]) for name in names))
    listed = [[name, len(files[name])] for name in names]
    header = json.dumps({"code": _VERSION, "files": listed}, separators=(",", ":"))
    return b"".join([header.encode(), b"\n", *(files[name] for name in names)])


def unpack_code(archive: bytes) -> CodeFiles:
    """Return the files of an archive, which a stranger may have made.

    Raises:
        Refused: it is none, or not the one archive of its files.
    """
    if len(archive) > MOST_ARCHIVE_BYTES:
        raise _no_archive(f"has {len(archive)} bytes, expected at most {MOST_ARCHIVE_BYTES}")
    end = archive.find(b"\n", 0, _HEADER.limit_bytes + 1)
    if end < 0:
        raise _no_archive("has no line with its files")
    try:
        header = parse_json(archive[:end], _HEADER)
        version, listed = header["code"], [(name, size) for name, size in header["files"]]
    except (ValueError, KeyError, TypeError) as error:
        raise _no_archive(f"has no list of files ({printable(str(error), 100)})") from None
    if version != _VERSION or not all(
        isinstance(name, str) and type(size) is int and size >= 0 for name, size in listed
    ):
        raise _no_archive(f"has no list of names and sizes of version {_VERSION}")
    files, start = {}, end + 1
    for name, size in listed:
        files[name] = archive[start : start + size]
        start += size
    if pack_code(files) != archive:
        raise _no_archive("has another order, other sizes or more bytes than its list of files says")
    return files


def hash_archive(archive: bytes) -> str:
    """Return the SHA-256 of an archive, as hexadecimal digits."""
    return hashlib.sha256(archive).hexdigest()


def _check_names(names: list[str]) -> None:
    """Check the names of an archive's files, which are in order."""
    if not names:
        raise Refused("has no files; name the folder that has the module of transformer_config.model_type")
    check_file_count(len(names))
    for name in names:
        parts = name.split("/")
        if len(name) > MOST_NAME_CHARACTERS or not name.isprintable() or "\\" in name:
            raise Refused(
                f"{printable(name, 60)}: expected a printable name of at most {MOST_NAME_CHARACTERS} characters "
                "without a backslash; rename the file"
            )
        if any(not part or is_left_out(part) for part in parts):
            raise Refused(
                f"{printable(name, 60)}: expected a name below the folder, without hidden parts; rename the file"
            )
    folders = {name[:place] for name in names for place, letter in enumerate(name) if letter == "/"}
    clash = next((name for name in names if name in folders), None)
    if clash is not None:
        raise Refused(f"{printable(clash, 60)}: is a file and a folder; rename one of them")
    assert all(first < second for first, second in pairwise(names))


def check_file_count(count: int) -> None:
    """Check the number of files, which may still be counted.

    Raises:
        Refused: there are too many.
    """
    if count > MOST_CODE_FILES:
        raise Refused(f"has more than {MOST_CODE_FILES} files; name a folder with the model's code alone")


def _check_size(size_bytes: int) -> None:
    if size_bytes > MOST_CODE_BYTES:
        raise Refused(
            f"has {size_bytes} bytes, expected at most {MOST_CODE_BYTES}; name a folder with the model's code alone"
        )


def _no_archive(reason: str) -> Refused:
    return Refused(f"the archive of code {reason}; send it with `tiermesh submit --code`")
