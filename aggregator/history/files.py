"""The files of a job's history: records, each with a checksum, so that one that was cut short is known; and names."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aggregator.history.columns import STEP_RECORD, SUMMARY_RECORD, Records, are_whole, sign
from aggregator.history.summaries import Summaries
from services.errors import Failed

_HEADER = np.dtype(
    [
        ("checksum", "<u4"),
        ("version", "<u4"),
        ("magic", "S8"),
        ("record_bytes", "<u4"),
        ("steps", "<u4"),
        ("first_step", "<u8"),
    ]
)
_MAGIC, _VERSION = b"TMMETRIC", 1

LEVELS = (1, 64, 4096)
"""Number of steps that a record of each of the files stands for. Each is a multiple of the one before."""
_NAMES = ("steps", "by-64", "by-4096")


class RecordFile:
    """A job's file of one level. Reads and writes go straight to the file, which other processes may read.

    Args:
        folder: folder of the job's history.
        level: number of steps that a record stands for, of `LEVELS`.
        writable: whether to open it for writing, and make it if it is not there.

    Raises:
        OSError: it can't be opened.
    """

    def __init__(self, folder: Path, level: int, *, writable: bool = False) -> None:
        self.path = folder / _NAMES[LEVELS.index(level)]
        self.level = level
        self._type = STEP_RECORD if level == 1 else SUMMARY_RECORD
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        self._file = os.open(self.path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __len__(self) -> int:
        """Return the number of whole records."""
        size = os.fstat(self._file).st_size - _HEADER.itemsize
        return max(0, size) // self._type.itemsize

    # ---- the header ----

    def read_first_step(self) -> int | None:
        """Return the step of the first record; None if the file has none yet.

        Raises:
            Failed: the header is damaged, or of another version.
        """
        data = os.pread(self._file, _HEADER.itemsize, 0)
        if len(data) < _HEADER.itemsize:
            return None
        header = np.frombuffer(data, _HEADER)
        expected = (_VERSION, _MAGIC, self._type.itemsize, self.level)
        found = tuple(header[name][0] for name in ("version", "magic", "record_bytes", "steps"))
        if not are_whole(header)[0] or found != expected:
            raise Failed(
                f"{self.path}: its header is damaged or of another version, expected version {_VERSION}; move the "
                "folder elsewhere, and the history begins again"
            )
        return int(header["first_step"][0])

    def begin(self, first_step: int) -> None:
        """Remove all records, and begin with a step.

        Raises:
            OSError: the disk failed.
        """
        os.ftruncate(self._file, 0)
        self.write_header(first_step)

    def write_header(self, first_step: int) -> None:
        """Write the header, which says the step of the first record.

        Raises:
            OSError: the disk failed.
        """
        header = np.zeros(1, _HEADER)
        header["version"], header["magic"] = _VERSION, _MAGIC
        header["record_bytes"], header["steps"] = self._type.itemsize, self.level
        header["first_step"] = first_step
        sign(header)
        self._write(header.tobytes(), 0)

    # ---- the records ----

    def read(self, start: int, stop: int) -> Records:
        """Return the records at some places; fewer if the file ends before. Some may not be whole."""
        size = (stop - start) * self._type.itemsize
        data = os.pread(self._file, size, self._offset(start)) if size > 0 else b""
        return np.frombuffer(data[: len(data) // self._type.itemsize * self._type.itemsize], self._type)

    def write(self, start: int, records: Records) -> None:
        """Sign records and write them at some places.

        Raises:
            OSError: the disk failed, or does not take all of them.
        """
        sign(records)
        self._write(records.tobytes(), self._offset(start))

    def cut(self, count: int) -> None:
        """Remove all records after the first ones.

        Raises:
            OSError: the disk failed.
        """
        if count < len(self):
            os.ftruncate(self._file, self._offset(count))

    def _offset(self, place: int) -> int:
        return _HEADER.itemsize + place * self._type.itemsize

    def _write(self, data: bytes, offset: int) -> None:
        if os.pwrite(self._file, data, offset) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def read_first_step(files: Sequence[RecordFile]) -> int | None:
    """Return the first step of a history by the first header that is whole, as all say the same; None without steps.

    Args:
        files: the history's files; the first one is that of the steps.

    Raises:
        Failed: each header is damaged, or of another version.
    """
    damaged: Failed | None = None
    for file in files:
        try:
            found = file.read_first_step()
        except Failed as error:
            damaged = damaged or error
        else:
            if found is not None or damaged is None:
                return found
    if damaged is not None:
        raise damaged
    return None


def read_summaries(file: RecordFile, start: int, stop: int) -> Summaries:
    """Return what the whole records at some places say, as summaries of their steps."""
    records = file.read(start, stop)
    places = np.arange(start, start + len(records))
    if file.level == 1:
        there = are_whole(records)
        return Summaries.of_steps(records[there], places[there])
    there = are_whole(records) & records["count"].any(axis=1)
    return Summaries.of_blocks(records[there], (places[there] + 1) * file.level - 1)


def read_names(path: Path) -> list[str]:
    """Return the whole lines of a file of names; none if there is no file."""
    try:
        return path.read_bytes().decode(errors="replace").split("\n")[:-1]
    except FileNotFoundError:
        return []
