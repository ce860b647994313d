"""Memory of leases' sums, used again from step to step; in memory that an aggregator on this host sees, if one does."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, chunk_range
from services.tensors.shared_memory import SharedArray

log = logging.getLogger("tiermesh.worker")


@dataclass(frozen=True)
class LeaseSum:
    """The sum of a lease's micro-batches.

    Attributes:
        values: [elements] float32.
        shared: where chunks lie in the wire type for an aggregator that sees it: in float32 the memory of `values`.
    """

    values: Float32Array
    shared: SharedArray | None = None

    def chunk(self, index: int) -> Float32Array:
        """A chunk of the values, a view."""
        start, stop = chunk_range(self.values.size, index)
        return self.values[start:stop]


class SumMemory:
    """Gives memory to leases, and takes it back. Of the device thread, but for `sharing`.

    What an aggregator was told of it may still read after the lease is dropped: a revoked lease's chunks that had
    arrived are part of the step's sum. So memory rests until newer weights tell of the step's COMMIT.

    Attributes:
        sharing: whether an aggregator sees this process's memory.
    """

    def __init__(self) -> None:
        self.sharing = False
        self._free: list[LeaseSum] = []
        self._resting: list[LeaseSum] = []

    def take(self, elements: int, wire_bytes: int) -> LeaseSum:
        """Memory for a layout of so many elements, each of so many bytes on the wire; what it holds is of no use."""
        for each in self._free:
            if each.values.size == elements and (each.shared is not None) == self.sharing:
                self._free.remove(each)
                return each
        shared = _shared(elements, wire_bytes) if self.sharing else None
        if shared is not None and wire_bytes == 4:
            return LeaseSum(shared.payload.view(np.float32), shared)
        return LeaseSum(np.empty(elements, np.float32), shared)

    def rest(self, used: LeaseSum) -> None:
        """A lease is dropped."""
        self._resting.append(used)

    def committed(self) -> None:
        """Newer weights have come: nobody reads what was used for the step before."""
        self._free, self._resting = self._resting, []

    def clear(self) -> None:
        """The job is over."""
        self._free, self._resting = [], []


def _shared(elements: int, wire_bytes: int) -> SharedArray | None:
    try:
        return SharedArray(elements * wire_bytes, CHUNK_ELEMENTS * wire_bytes)
    except OSError as error:
        log.warning("gradients over gRPC: no shared memory can be made for them here (%s)", error)
        return None
