"""The sums of a worker's leases: their memory is reused from step to step, and an aggregator on this host sees it."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts
from services.tensors.shared_memory import SharedArray

log = logging.getLogger("tiermesh.worker")


@dataclass(frozen=True, eq=False)
class LeaseSum:
    """The sum of a lease's micro-batches; two are the same if they are the same object.

    Attributes:
        values: [elements of the parts] float32, one part after another.
        parts: the worker's parts of the layout.
        shared: memory in which an aggregator sees the chunks in the wire type, None if none does. With float32 on the
            wire it is the memory of `values`.
        in_row: whether it is of a row's lease, which sends pieces of chunks.
    """

    values: Float32Array
    parts: LayoutParts
    shared: SharedArray | None = None
    in_row: bool = False

    def piece(self, offset: int, elements: int) -> Float32Array:
        """Return a piece of the values, as a view.

        Args:
            offset: index of its first element in the layout.
            elements: number of elements.
        """
        start = self.position(offset)
        return self.values[start : start + elements]

    def position(self, offset: int) -> int:
        """Return the index in the values of an element of the layout."""
        position = self.parts.find(offset)
        if position is None:
            raise ValueError(f"element {offset} is in none of this worker's parts of the layout")
        return position


class LeaseSums:
    """The sums of a worker's leases, by lease, and the memory that they borrow.

    Only the thread that computes leases calls its methods. The event loop calls `find` and sets `sharing`.

    An aggregator may read shared chunks after their lease is dropped: chunks of a revoked lease that have arrived are
    part of the step's sum. So memory is reused only when newer weights show that the step is committed.

    Attributes:
        sharing: whether an aggregator sees this process's memory.
    """

    def __init__(self) -> None:
        self.sharing = False
        self._sums: dict[int, LeaseSum] = {}
        self._free: list[LeaseSum] = []
        self._retired: list[LeaseSum] = []

    def find(self, lease: int) -> LeaseSum | None:
        """Return the sum of a lease; None if it has none, or none any longer."""
        return self._sums.get(lease)

    def keep(self, lease: int, values: Float32Array, parts: LayoutParts) -> None:
        """Keep values that were made elsewhere in this process, until `retire`."""
        self._sums[lease] = LeaseSum(values, parts)

    def borrow(self, lease: int, parts: LayoutParts, wire_bytes: int, *, in_row: bool = False) -> LeaseSum:
        """Return memory for the sum of a lease, until `retire`; its contents are arbitrary.

        Args:
            lease: id of the lease.
            parts: the worker's parts of the layout.
            wire_bytes: bytes of an element on the wire.
            in_row: whether the lease is a row's, which sends pieces of chunks.
        """
        fitting = (
            each for each in self._free if each.parts is parts and (each.shared is not None) == self.sharing
        )
        borrowed = next(fitting, None)
        if borrowed is not None:
            self._free.remove(borrowed)
        else:
            shared = _shared(parts.elements, wire_bytes) if self.sharing else None
            in_place = shared.payload.view(np.float32) if shared is not None and wire_bytes == 4 else None
            values = np.empty(parts.elements, np.float32) if in_place is None else in_place
            borrowed = LeaseSum(values, parts, shared, in_row)
        self._sums[lease] = borrowed
        return borrowed

    def retire(self, lease: int) -> None:
        """Take back the memory of a dropped lease, which is no longer written; it must not be overwritten yet."""
        used = self._sums.pop(lease, None)
        if used is not None:
            self._retired.append(used)

    def reuse_retired(self) -> None:
        """Lend retired memory again: newer weights have arrived, so the step that it was used for is committed."""
        self._free, self._retired = self._retired, []

    def clear(self) -> None:
        """Free all sums and all memory."""
        self._sums.clear()
        self._free, self._retired = [], []


def _shared(elements: int, wire_bytes: int) -> SharedArray | None:
    try:
        return SharedArray(elements * wire_bytes, CHUNK_ELEMENTS * wire_bytes)
    except OSError as error:
        log.warning("gradients go over gRPC: shared memory can't be created (%s)", error)
        return None
