"""The emulator's threads, and the blocks that ops are split into.

The process has one pool of threads, for the open mesh; BLAS itself has a single thread (`mesh.device`). numpy releases
the GIL while it computes, so plain Python threads suffice. Blocks depend on shapes alone, never on the number of
threads, so the bits don't depend on it either. A single thread runs the same blocks one by one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mesh.emulator.broadcast import Array

BLOCK_ELEMENTS = 128 * 1024
"""Elements per block of an op with several passes: they fit a core's cache and are worth a thread."""

_PASS_ELEMENTS = 256 * 1024
"""Elements per block of an op with one pass: fewer aren't worth waking another thread."""

_SIDE_MULTIPLE = 32
"""Divisor of the rows or columns of a product's block, because BLAS's own blocks are multiples of it."""


class _Task:
    """Calls of a function with 0 to `count - 1`, shared by the threads; a free thread takes the next."""

    __slots__ = ("_count", "_finish", "_function", "_take", "done", "error")

    def __init__(self, function: Callable[[int], None], count: int) -> None:
        self._function = function
        self._count = count
        # A call of `next` on a C iterator is atomic under the GIL.
        self._take = itertools.count().__next__
        self._finish = itertools.count(1).__next__
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def work(self) -> None:
        """Make calls while there are some left. The thread that finishes the last one releases `done`."""
        while (index := self._take()) < self._count:
            try:
                self._function(index)
            except BaseException as error:
                self.error = error
            if self._finish() == self._count:
                self.done.release()


class _Helper(threading.Thread):
    """Thread that works on tasks until it receives None."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"emulator-{number}", daemon=True)
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        np.seterr(all="ignore")  # The thread that drives the mesh has this setting too.
        while (task := self.tasks.get()) is not None:
            task.work()
            del task  # It would keep arrays alive.


_helpers: list[_Helper] = []


def use_threads(count: int) -> None:
    """Set the number of threads, including the calling one. Must not be called while an op runs."""
    while len(_helpers) >= max(1, count):
        helper = _helpers.pop()
        helper.tasks.put(None)
        helper.join()
    while len(_helpers) < count - 1:
        _helpers.append(_Helper(len(_helpers) + 1))


def run(function: Callable[[int], None], count: int) -> None:
    """Call `function` with 0 to `count - 1` in any order, on all threads. Raises the error of a failed call."""
    if count == 1 or not _helpers:
        for index in range(count):
            function(index)
        return
    task = _Task(function, count)
    for helper in _helpers[: count - 1]:
        helper.tasks.put(task)
    task.work()
    task.done.acquire()
    if task.error is not None:
        raise task.error


def split_rows(rows: int, width: int) -> list[slice]:
    """Split rows of `width` elements into blocks: one, or an even number of about `BLOCK_ELEMENTS` each."""
    elements = rows * width
    count = 1 if elements <= BLOCK_ELEMENTS else 2 * -(-elements // (2 * BLOCK_ELEMENTS))
    return cut(rows, min(count, rows))


def cut(size: int, count: int, multiple: int = 1) -> list[slice]:
    """Return at most `count` slices of `size` items, of equal sizes that are multiples of `multiple`.

    The last slice may be smaller. There is one empty slice if `size` is 0.
    """
    step = max(1, -(-size // (count * multiple))) * multiple
    return [slice(start, min(start + step, size)) for start in range(0, max(1, size), step)]


def run_over_rows(function: Callable[[slice], None], rows: int, width: int) -> None:
    """Call `function` with each block of `split_rows`, on all threads."""
    blocks = split_rows(rows, width)
    run(lambda index: function(blocks[index]), len(blocks))


def apply_elementwise(
    function: Callable[..., object], *operands: Array, dtype: DTypeLike, out: Array | None = None
) -> Array:
    """Apply a numpy function to operands that broadcast, block by block.

    Args:
        function: numpy function with an `out` argument.
        operands: arrays of equal rank, and scalars.
        dtype: dtype of the result.
        out: array for the result, which may be an operand; None for a new one.
    """
    spread = np.broadcast(*operands)
    if out is None:
        out = np.empty(spread.shape, dtype)
    if spread.size < 2 * _PASS_ELEMENTS:
        function(*operands, out=out)
        return out
    axis, blocks = _batches(spread.shape, spread.size // _PASS_ELEMENTS)

    def block(index: int) -> None:
        function(
            *(_slice_along(operand, axis, blocks[index]) for operand in operands),
            out=_slice_along(out, axis, blocks[index]),
        )

    run(block, len(blocks))
    return out


def multiply(left: Array, right: Array) -> Array:
    """Return the matrix product of [rows, inner] and [inner, columns]; the longer side is cut into blocks."""
    rows, columns = left.shape[0], right.shape[1]
    out: Array = np.empty((rows, columns), np.float32)
    blocks = cut(max(rows, columns), _product_blocks(rows * columns * left.shape[1]), _SIDE_MULTIPLE)
    if len(blocks) == 1:
        return np.matmul(left, right, out=out)

    def block(index: int) -> None:
        block_slice = blocks[index]
        # BLAS packs the uncut operand once per block, which costs least if it is the smaller one.
        if rows >= columns:
            np.matmul(left[block_slice], right, out=out[block_slice])
        else:
            np.matmul(left, right[:, block_slice], out=out[:, block_slice])

    run(block, len(blocks))
    return out


def multiply_batches(left: Array, right: Array) -> Array:
    """Return `left @ right` for arrays of equal rank with broadcast batches; batches are cut into blocks."""
    leading = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    out: Array = np.empty((*leading, left.shape[-2], right.shape[-1]), np.float32)
    # Small matrices cost more per multiplication, and cutting between batches costs nothing.
    axis, blocks = _batches(leading, _product_blocks(4 * out.size * left.shape[-1]))
    if len(blocks) == 1:
        return np.matmul(left, right, out=out)

    def block(index: int) -> None:
        at = blocks[index]
        np.matmul(
            _slice_along(left, axis, at), _slice_along(right, axis, at), out=_slice_along(out, axis, at)
        )

    run(block, len(blocks))
    return out


def _product_blocks(multiplications: int) -> int:
    """Return the number of blocks of a product: 1, then 2 from 2**23 multiplications, doubled for each factor of 8."""
    return 1 << max(0, (multiplications.bit_length() - 21) // 3)


def _slice_along(operand: Any, axis: int, at: slice) -> Any:
    """Return a slice of an operand along an axis, or the whole operand if it broadcasts along it."""
    if operand.ndim == 0 or operand.shape[axis] == 1:
        return operand
    return operand[(slice(None),) * axis + (at,)]


def _batches(shape: Sequence[int], count: int) -> tuple[int, list[slice]]:
    """Return the first axis longer than 1, and at most `count` slices of it."""
    for axis, size in enumerate(shape):
        if size > 1:
            return axis, cut(size, max(1, count))
    return 0, [slice(None)]
