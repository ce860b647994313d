"""Reads the history of a job, as `tiermesh.Jobs/Metrics` sends it: a row for each step, or summaries of several."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregator.history.columns import COLUMNS, FIGURES, GENERATION, STEP, WAITED_FOR
from aggregator.history.files import LEVELS, RecordFile, read_first_step, read_names, read_summaries
from aggregator.history.summaries import Summaries
from protos.jobs_pb2 import MetricsColumn, MetricsRequest, MetricsRows
from services.errors import Refused
from services.protocol.bounds import MAX_ROWS

MOST_POINTS = 10_000
"""Largest number of summaries that are asked for."""


def check_request(request: MetricsRequest) -> None:
    """Check what a request asks for.

    Raises:
        Refused: something is unknown or out of range.
    """
    for name in request.columns:
        if name not in COLUMNS:
            near = difflib.get_close_matches(name, COLUMNS, n=1)
            fix = f"did you mean {near[0]}?" if near else "leave columns out for all"
            raise Refused(f"columns: {name[:80]!r} is none of {', '.join(COLUMNS)}; {fix}")
    if request.points > MOST_POINTS:
        raise Refused(
            f"points: {request.points} given, expected at most {MOST_POINTS}; give fewer, or 0 for a row for each step"
        )
    if request.last_step and request.last_step < request.first_step:
        raise Refused(
            f"last_step: {request.last_step} given with first_step {request.first_step}, expected one that is not "
            "before it; give 0 for the newest"
        )


def read_history(folder: Path, request: MetricsRequest) -> Iterator[MetricsRows]:
    """Yield the parts of the answer to a checked request; at least one, which has no rows if nothing is known.

    It reads files, so a thread takes each part.

    Args:
        folder: folder of the job's history, which may not exist.
        request: the request.

    Raises:
        OSError: the disk failed.
        Failed: a file is damaged.
    """
    with ExitStack() as stack:
        try:
            files = [RecordFile(folder, level) for level in LEVELS]
        except FileNotFoundError:  # no step yet, or removed
            files = []
        for file in files:
            stack.callback(file.close)
        first_step = read_first_step(files)
        history = _History(folder, files, first_step or 0, request)
        if first_step is None:
            yield history.empty()
        else:
            yield from history.parts()


class _History:
    """The open files of a history, and what is asked of it.

    Args:
        folder: folder of the history.
        files: its files, by level.
        first_step: step of its first record.
        request: what is asked.
    """

    def __init__(
        self, folder: Path, files: Sequence[RecordFile], first_step: int, request: MetricsRequest
    ) -> None:
        self._folder = folder
        self._files = files
        self._first_step = first_step
        self._columns = [
            each for each in COLUMNS if each == STEP or not request.columns or each in request.columns
        ]
        self._steps = len(files[0]) if files else 0
        self._start = max(0, request.first_step - first_step)
        end = request.last_step - first_step + 1 if request.last_step else self._steps
        self._stop = max(self._start, min(end, self._steps))
        self._level, self._width = self._choose(request.points)

    def _choose(self, points: int) -> tuple[int, int]:
        """Return the level to read and the steps of a row, and widen the range to whole records of the level."""
        count = self._stop - self._start
        if not points or count <= points:
            return 1, 1
        width = -(-count // points)
        level = max(each for each in LEVELS if each <= width)
        self._start -= self._start % level
        self._stop = min(self._steps, -(-self._stop // level) * level)
        width = -(-(self._stop - self._start) // points)
        return level, -(-width // level) * level

    def empty(self) -> MetricsRows:
        """Return a part without rows."""
        return self._make(Summaries.none(), [])

    def parts(self) -> Iterator[MetricsRows]:
        """Yield the rows in parts."""
        names = read_names(self._folder / "names") if WAITED_FOR in self._columns else []
        names.insert(0, "")
        is_empty = True
        for rows in self._rows():
            if len(rows):
                is_empty = False
                yield self._make(rows, names)
        if is_empty:
            yield self.empty()

    def _rows(self) -> Iterator[Summaries]:
        """Yield the rows in runs, none of them larger than what is read at once."""
        pending = Summaries.none()  # the row that goes on in the next records
        for piece in self._pieces():
            piece = pending + piece
            if self._width > 1:
                piece = piece.merge((piece.last - self._start) // self._width)
                piece, pending = piece[:-1], piece[-1:]
            yield piece
        yield pending

    def _pieces(self) -> Iterator[Summaries]:
        """Yield what is known within the range, by records of the level, and the steps of its last block one by one."""
        file = self._files[LEVELS.index(self._level)]
        start, stop = self._start // self._level, min(self._stop // self._level, len(file))
        yield from _read(file, start, stop)
        if self._level > 1:
            yield from _read(self._files[0], max(start, stop) * self._level, self._stop)

    def _make(self, rows: Summaries, names: Sequence[str]) -> MetricsRows:
        """Return a part with these rows."""
        part = MetricsRows(steps_per_row=self._width)
        for name in self._columns:
            if name == STEP:
                part.columns.append(_numbers(name, "value", rows.last + self._first_step))
            elif name == GENERATION:
                part.columns.append(_numbers(name, "value", rows.generation))
            elif name == WAITED_FOR:
                texts = [names[number] if number < len(names) else "" for number in rows.waited_for.tolist()]
                part.columns.append(MetricsColumn(name=name, kind="text", texts=texts))
            elif self._width == 1:
                part.columns.append(_numbers(name, "value", rows.mean[:, FIGURES.index(name)]))
            else:
                for kind, values in (("min", rows.low), ("max", rows.high), ("mean", rows.mean)):
                    part.columns.append(_numbers(name, kind, values[:, FIGURES.index(name)]))
        return part


def _read(file: RecordFile, start: int, stop: int) -> Iterator[Summaries]:
    for first in range(start, stop, MAX_ROWS):
        yield read_summaries(file, first, min(first + MAX_ROWS, stop))


def _numbers(name: str, kind: str, values: NDArray[np.generic]) -> MetricsColumn:
    return MetricsColumn(name=name, kind=kind, values=values.astype("<f8").tobytes())
