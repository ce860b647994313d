"""Memory for the sums of leases: reused from step to step, and shared with an aggregator on this host."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts
from services.tensors.shared_memory import SharedArray

log = logging.getLogger("tiermesh.worker")


@dataclass(frozen=True)
class LeaseSum:
    """The sum of a lease's micro-batches.

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


class SumMemory:
    """Memory that leases borrow for their sums.

    Only the device thread calls its methods. The event loop sets `sharing`.

    An aggregator may read shared chunks after their lease is dropped: chunks of a revoked lease that have arrived are
    part of the step's sum. So memory is reused only when newer weights show that the step is committed.

    Attributes:
        sharing: whether an aggregator sees this process's memory.
    """

    def __init__(self) -> None:
        self.sharing = False
        self._free: list[LeaseSum] = []
        self._retired: list[LeaseSum] = []

    def take(self, parts: LayoutParts, wire_bytes: int, *, in_row: bool = False) -> LeaseSum:
        """Return memory for a sum; its contents are arbitrary.

        Args:
            parts: the worker's parts of the layout.
            wire_bytes: bytes of an element on the wire.
            in_row: whether the lease is a row's, which sends pieces of chunks.
        """
        for each in self._free:
            if each.parts is parts and (each.shared is not None) == self.sharing:
                self._free.remove(each)
                return each
        shared = _shared(parts.elements, wire_bytes) if self.sharing else None
        if shared is not None and wire_bytes == 4:
            return LeaseSum(shared.payload.view(np.float32), parts, shared, in_row)
        return LeaseSum(np.empty(parts.elements, np.float32), parts, shared, in_row)

    def retire(self, used: LeaseSum) -> None:
        """Take back the memory of a dropped lease; it must not be overwritten yet."""
        self._retired.append(used)

    def reuse_retired(self) -> None:
        """Lend retired memory again: newer weights have arrived, so the step that it was used for is committed."""
        self._free, self._retired = self._retired, []

    def clear(self) -> None:
        """Free all memory."""
        self._free, self._retired = [], []


def _shared(elements: int, wire_bytes: int) -> SharedArray | None:
    try:
        return SharedArray(elements * wire_bytes, CHUNK_ELEMENTS * wire_bytes)
    except OSError as error:
        log.warning("gradients go over gRPC: shared memory can't be created (%s)", error)
        return None
