"""A small curve of a job's loss on a terminal, of Braille letters: 2 points wide and 4 high each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

from cli.metrics import History
from cli.output import Output
from protos.jobs_pb2 import MetricsRequest
from services.errors import TiermeshError
from services.jobs.client import JobsClient
from services.printable import counted

_ROWS = 4
_MOST_CELLS = 60
_AXIS_CHARACTERS = 11
"""Width of the numbers left of the curve, with the spaces around them."""
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Bits of a letter's points, by column and row."""
_EMPTY = 0x2800


async def draw_loss_of_job(client: JobsClient, job: str, output: Output) -> list[str]:
    """Return the curve of a job's loss; no lines if there are fewer than two steps, or no history can be read."""
    history, request = History({}, 1), _request(output)
    request.job = job
    try:
        async with aclosing(client.metrics(request)) as parts:
            async for part in parts:
                history = history.add(part)
    except TiermeshError:  # the job itself has been shown, which matters more
        return []
    return list(draw_small(history, _cells(output)))


def draw_loss_of_folder(folder: Path, output: Output) -> list[str]:
    """Return the curve of the loss in a folder with a job's history, in the same way; none where none can be shown."""
    if not output.can_draw:
        return []
    from aggregator.history.reader import read_history

    history = History({}, 1)
    try:
        for part in read_history(folder, _request(output)):
            history = history.add(part)
    except (OSError, TiermeshError):
        return []
    return list(draw_small(history, _cells(output)))


def _cells(output: Output) -> int:
    width = output.width
    return _MOST_CELLS if width is None else max(8, min(_MOST_CELLS, width - _AXIS_CHARACTERS - 1))


def _request(output: Output) -> MetricsRequest:
    return MetricsRequest(columns=["loss"], points=2 * _cells(output))


def draw_small(history: History, cells: int) -> Iterator[str]:
    """Yield the lines of the curve of a history's loss. Steps whose loss is not finite are gaps, and counted.

    Args:
        history: the history, with at most two rows for each letter.
        cells: number of letters.
    """
    rows = [
        (step, loss)
        for step, loss in zip(history.find("step"), history.find("loss"), strict=False)
        if isinstance(step, float) and step > 0 and not isinstance(loss, str)
    ]
    losses = [loss if loss is not None and math.isfinite(loss) else None for _, loss in rows]
    known = [loss for loss in losses if loss is not None]
    if len(known) < 2:
        return
    low, high = min(known), max(known)
    grid = _draw([None if each is None else _share(each, low, high) for each in losses], cells)
    axis = [f"{high:.4g}", *[""] * (_ROWS - 2), f"{low:.4g}"]
    for text, letters in zip(axis, grid, strict=True):
        yield f"{text:>{_AXIS_CHARACTERS - 1}} {letters}"
    gaps = len(losses) - len(known)
    lacking = f"; {counted(gaps, 'point')} without a finite loss" if gaps else ""
    yield f"{'loss':>{_AXIS_CHARACTERS - 1}} steps {rows[0][0]:,.0f} to {rows[-1][0]:,.0f}{lacking}"


def _share(value: float, low: float, high: float) -> float:
    """Return where a value lies between two others, from 0 to 1; halved, so that no difference is infinite."""
    return (value / 2 - low / 2) / (high / 2 - low / 2) if high > low else 0.5


def _draw(shares: Sequence[float | None], cells: int) -> list[str]:
    """Return rows of Braille letters with a line through shares of the height, from left to right."""
    columns, height = 2 * cells, 4 * _ROWS
    letters = [[_EMPTY] * cells for _ in range(_ROWS)]
    before: int | None = None
    for column in range(columns):
        place = column * (len(shares) - 1) / (columns - 1)
        left, right = shares[math.floor(place)], shares[math.ceil(place)]
        if left is None or right is None:
            before = None
            continue
        share = left + (right - left) * (place - math.floor(place))
        row = round((1 - share) * (height - 1))
        # From the point beside the one before, so that the line is one point wide.
        start = row if before is None else before + (row > before) - (row < before)
        for each in range(min(start, row), max(start, row) + 1):
            letters[each // 4][column // 2] |= _DOTS[column % 2][each % 4]
        before = row
    return ["".join(map(chr, line)).rstrip(chr(_EMPTY)) for line in letters]
