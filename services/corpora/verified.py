"""Record of the files of token ids that this host has verified: size, time of the last change and inode of each.

A sidecar says what a file must be. Whether the file on this host still is that, its record says: a file whose size,
time or inode differ from it has changed, or may have, and is verified as a whole before anybody uses it.

Records lie in the cache, one for each file. Without one, the time in the sidecar stands for it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from services.corpora.cache import cache_folder, make_cache_folder
from services.corpora.sidecar import TokenSidecar
from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path

log = logging.getLogger("tiermesh")

MAX_RECORDS = 10_000
"""Maximum number of records. The oldest make room for new ones; without its record a file is verified again."""
_FOLDER = "verified"
_MAX_RECORD_BYTES = 1024


class _Record(BaseModel):
    """A verified file.

    Attributes:
        format: version of this format.
        identity: identity of the ids that the file has.
        file_bytes: its size.
        modified_ns: time of its last change, in nanoseconds since 1970.
        inode: its number on the disk: a file that replaces it has another one.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    format: Literal[1] = 1
    identity: str
    file_bytes: int
    modified_ns: int
    inode: int


def is_unchanged(path: Path, sidecar: TokenSidecar, status: os.stat_result) -> bool:
    """Return whether a file is, by its size, time and inode, the one that was described or verified on this host.

    Args:
        path: the file.
        sidecar: its description.
        status: its status.
    """
    record = _load(path)
    if record is not None and record.identity == sidecar.identity:
        return record == _make_record(sidecar.identity, status)
    return sidecar.fits(status)


def note_verified(path: Path, identity: str, status: os.stat_result) -> None:
    """Record that a file has the ids that an identity stands for.

    If the record can't be written, a line says so, and the file may be verified again.

    Args:
        path: the file.
        identity: identity of its ids.
        status: its status before it was verified.
    """
    record = _make_record(identity, status)
    if record == _load(path):
        return
    try:
        place = make_cache_folder(_FOLDER) / _name(path)
        temporary = place.with_name(f".{secrets.token_hex(8)}.partial")
        temporary.write_text(record.model_dump_json())
        temporary.replace(place)
        _make_room(place.parent)
    except (Refused, OSError) as error:
        log.warning("%s was verified, but that can't be recorded: %s", printable_path(path), error)


def _make_record(identity: str, status: os.stat_result) -> _Record:
    return _Record(
        identity=identity, file_bytes=status.st_size, modified_ns=status.st_mtime_ns, inode=status.st_ino
    )


def _load(path: Path) -> _Record | None:
    try:
        place = cache_folder(_FOLDER) / _name(path)
        return _Record.model_validate_json(read_input_file("", place, _MAX_RECORD_BYTES))
    except (Refused, ValidationError):  # none, or a damaged one, which is replaced
        return None


def _name(path: Path) -> str:
    """Return the name of a file's record. Links to one file share it."""
    return hashlib.sha256(os.fsencode(path.resolve())).hexdigest() + ".json"


def _make_room(folder: Path) -> None:
    """Remove the oldest records beyond `MAX_RECORDS`."""
    with os.scandir(folder) as entries:
        names = [each.name for each in entries]
    if len(names) > MAX_RECORDS:
        ages = []
        for name in names:
            with suppress(OSError):  # another process may have removed it
                ages.append(((folder / name).stat().st_mtime_ns, name))
        for _, name in sorted(ages)[:-MAX_RECORDS]:
            (folder / name).unlink(missing_ok=True)
