"""Trackers that append a line for each point to a file: CSV and JSON lines."""

from __future__ import annotations

import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import cast

from services.tracking.points import METRICS, Point, PointKind
from services.tracking.tracker import Run, WrittenSteps

_TAIL_BYTES = 1 << 20
"""End of a file that is read for its newest steps, when it is opened again."""


class LineFile(ABC):
    """A file with a line for each point. It is its own record of which steps it has.

    A line that a kill has cut off is removed when the file is opened again. If a write fails, the file is left as it
    was.

    Args:
        run: the job.

    Raises:
        OSError: the file can't be opened.
    """

    name = ""
    header = ""

    def __init__(self, run: Run) -> None:
        path = run.folder / self.name
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        self.written = WrittenSteps()
        self._size_bytes = 0
        try:
            self._go_on()
        except OSError:
            os.close(self._file)
            raise

    def _go_on(self) -> None:
        """Find the end of the last whole line and the newest steps; begin an empty file with its header."""
        size = os.fstat(self._file).st_size
        tail = os.pread(self._file, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        *lines, cut = tail.split(b"\n")
        self._size_bytes = size - len(cut)
        for line in lines:
            self._note(line)
        if "step" in self.written.newest:
            # Evaluations too far back to be read are of earlier steps.
            self.written.raise_to("evaluation", self.written.newest["step"] - 1)
        if not self._size_bytes:
            self._append(self.header.encode())

    def write(self, points: Sequence[Point]) -> None:
        """Append a line for each point."""
        self._append("".join(f"{self.format(point)}\n" for point in points).encode())
        self.written.add(points)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @abstractmethod
    def format(self, point: Point) -> str:
        """Return the line of a point, without its end."""

    @abstractmethod
    def parse(self, line: str) -> tuple[str, int]:
        """Return kind and step of a line. Raises ValueError, KeyError or TypeError for another one."""

    def _note(self, line: bytes) -> None:
        try:
            kind, step = self.parse(line.decode())
        except (ValueError, KeyError, TypeError):
            return
        if kind in ("step", "evaluation"):
            self.written.raise_to(cast(PointKind, kind), step)

    def _append(self, data: bytes) -> None:
        os.ftruncate(self._file, self._size_bytes)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.pwrite(self._file, rest, self._size_bytes + len(data) - len(rest)) :]
        except OSError:
            os.ftruncate(self._file, self._size_bytes)
            raise
        self._size_bytes += len(data)


class CsvFile(LineFile):
    """`metrics.csv`: a column for each metric, empty where it is unknown."""

    name = "metrics.csv"
    header = ",".join(("kind", "step", "unix_seconds", *METRICS)) + "\n"

    def format(self, point: Point) -> str:
        """Return the line of a point, without its end."""
        values = (f"{point.values[name]!r}" if name in point.values else "" for name in METRICS)
        return ",".join((point.kind, str(point.step), f"{point.unix_seconds:.3f}", *values))

    def parse(self, line: str) -> tuple[str, int]:
        """Return kind and step of a line."""
        kind, step, _ = line.split(",", 2)
        return kind, int(step)


class JsonLinesFile(LineFile):
    """`metrics.jsonl`: an object for each point. A value that JSON lacks, such as NaN, is null."""

    name = "metrics.jsonl"

    def format(self, point: Point) -> str:
        """Return the line of a point, without its end."""
        values = {name: value if math.isfinite(value) else None for name, value in point.values.items()}
        known = {"kind": point.kind, "step": point.step, "unix_seconds": round(point.unix_seconds, 3)}
        return json.dumps({**known, **values})

    def parse(self, line: str) -> tuple[str, int]:
        """Return kind and step of a line."""
        stored = json.loads(line)
        return str(stored["kind"]), int(stored["step"])
