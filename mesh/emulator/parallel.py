"""The emulator's threads, and the blocks that ops are split into.

There is one pool of threads in the process, that of the mesh that is open; BLAS beside it has none of its own
(`mesh.device`). numpy lets other threads run while it computes, so plain Python threads are enough. How an op is split
hangs on shapes alone, never on how many threads there are, so that no bit does; one thread walks the same blocks.
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
"""Elements of a block that an op makes several passes over: few enough for a core's cache, and enough for a thread."""

_PASS_ELEMENTS = 256 * 1024
"""Elements of a block that an op passes over once: fewer aren't worth waking another thread."""

_SIDE_MULTIPLE = 32
"""Rows or columns of a product's block are a multiple of this, as BLAS's own blocks are."""


class _Task:
    """A function to be called with 0, 1, ... below `count`, each taken by whichever thread is free."""

    __slots__ = ("_count", "_finish", "_function", "_take", "done", "error")

    def __init__(self, function: Callable[[int], None], count: int) -> None:
        self._function = function
        self._count = count
        # One call of `next` can't be interrupted by another thread's.
        self._take = itertools.count().__next__
        self._finish = itertools.count(1).__next__
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def work(self) -> None:
        """Make calls while there are some left; whoever finishes the last one releases `done`."""
        while (index := self._take()) < self._count:
            try:
                self._function(index)
            except BaseException as error:
                self.error = error
            if self._finish() == self._count:
                self.done.release()


class _Helper(threading.Thread):
    """A thread that works on tasks until it is given None."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"emulator-{number}", daemon=True)
        self.tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        np.seterr(all="ignore")  # as for the thread that drives the mesh
        while (task := self.tasks.get()) is not None:
            task.work()
            del task  # it keeps arrays alive


_helpers: list[_Helper] = []


def use_threads(count: int) -> None:
    """Compute with `count` threads from now on, the calling one among them. Not to be called beside an op."""
    while len(_helpers) >= max(1, count):
        helper = _helpers.pop()
        helper.tasks.put(None)
        helper.join()
    while len(_helpers) < count - 1:
        _helpers.append(_Helper(len(_helpers) + 1))


def run(function: Callable[[int], None], count: int) -> None:
    """Call `function` with each of 0 to `count - 1`, in any order, on all threads; raise what one of them raised."""
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


def row_blocks(rows: int, width: int) -> list[slice]:
    """Blocks of `rows` rows of `width` elements: an even number of about `BLOCK_ELEMENTS` each, or a single one."""
    elements = rows * width
    count = 1 if elements <= BLOCK_ELEMENTS else 2 * -(-elements // (2 * BLOCK_ELEMENTS))
    return cut(rows, min(count, rows))


def cut(size: int, count: int, multiple: int = 1) -> list[slice]:
    """At most `count` slices of `size` items, as even as they come in multiples of `multiple`; one if `size` is 0."""
    step = max(1, -(-size // (count * multiple))) * multiple
    return [slice(start, min(start + step, size)) for start in range(0, max(1, size), step)]


def over_rows(function: Callable[[slice], None], rows: int, width: int) -> None:
    """Call `function` with each of the `row_blocks`."""
    blocks = row_blocks(rows, width)
    run(lambda index: function(blocks[index]), len(blocks))


def elementwise(
    function: Callable[..., object], *operands: Array, dtype: DTypeLike, out: Array | None = None
) -> Array:
    """What a numpy function makes of operands that broadcast (arrays of one rank, scalars), as `dtype`.

    `out` is an array to put it into, perhaps an operand; a fresh one if left out.
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
            *(_part(operand, axis, blocks[index]) for operand in operands),
            out=_part(out, axis, blocks[index]),
        )

    run(block, len(blocks))
    return out


def product(left: Array, right: Array) -> Array:
    """The matrix product of [rows, inner] and [inner, columns], the longer side of the result cut into blocks."""
    rows, columns = left.shape[0], right.shape[1]
    out: Array = np.empty((rows, columns), np.float32)
    blocks = cut(max(rows, columns), _product_blocks(rows * columns * left.shape[1]), _SIDE_MULTIPLE)
    if len(blocks) == 1:
        return np.matmul(left, right, out=out)

    def block(index: int) -> None:
        part = blocks[index]
        # The other operand is packed once for each block by BLAS, which costs least if it is the smaller one.
        if rows >= columns:
            np.matmul(left[part], right, out=out[part])
        else:
            np.matmul(left, right[:, part], out=out[:, part])

    run(block, len(blocks))
    return out


def batched_product(left: Array, right: Array) -> Array:
    """`left @ right`, arrays of matrices of one rank whose leading dimensions broadcast, batches cut into blocks."""
    leading = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    out: Array = np.empty((*leading, left.shape[-2], right.shape[-1]), np.float32)
    # Small matrices take longer for each multiplication, and to cut between them costs nothing.
    axis, blocks = _batches(leading, _product_blocks(4 * out.size * left.shape[-1]))
    if len(blocks) == 1:
        return np.matmul(left, right, out=out)

    def block(index: int) -> None:
        at = blocks[index]
        np.matmul(_part(left, axis, at), _part(right, axis, at), out=_part(out, axis, at))

    run(block, len(blocks))
    return out


def _product_blocks(multiplications: int) -> int:
    """Into how many blocks a product is worth cutting: 1, 2 from 2**23 multiplications, then 2 for 8 times as many."""
    return 1 << max(0, (multiplications.bit_length() - 21) // 3)


def _part(operand: Any, axis: int, at: slice) -> Any:
    """The slice of an operand along an axis; all of what is the same along it."""
    if operand.ndim == 0 or operand.shape[axis] == 1:
        return operand
    return operand[(slice(None),) * axis + (at,)]


def _batches(shape: Sequence[int], count: int) -> tuple[int, list[slice]]:
    """The first axis that can be cut, and at most `count` slices of it."""
    for axis, size in enumerate(shape):
        if size > 1:
            return axis, cut(size, max(1, count))
    return 0, [slice(None)]
