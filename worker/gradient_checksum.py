"""The checksum of one micro-batch's gradient, taken before other gradients are added to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.tensors.kernels import crc32c
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Entry


class GradientChecksum:
    """Checksum of a gradient that is computed from its end to its start.

    Each parameter has a checksum of its own. So the result does not depend on the pieces in which the gradient becomes
    ready. It costs one pass over the gradient.

    Args:
        entries: layout entries of the gradient, contiguous: all of them, or those of a range.
        values: [elements of the entries] float32, the array that the gradient is written to.

    Attributes:
        entry_checksums: CRC-32C of each parameter's gradient, uint32.
    """

    def __init__(self, entries: Sequence[Entry], values: Float32Array) -> None:
        self._entries = entries
        self._values = values
        self._missing = len(entries)
        self.entry_checksums = np.zeros(len(entries), "<u4")

    def advance_to(self, offset: int) -> None:
        """Take in the gradient from this index of `values`, the start of an entry, to its end."""
        start = self._entries[0].offset
        while self._missing and self._entries[self._missing - 1].offset - start >= offset:
            self._missing -= 1
            entry = self._entries[self._missing]
            values = self._values[entry.offset - start : entry.stop - start].view(np.uint8)
            self.entry_checksums[self._missing] = crc32c.value(values)

    @property
    def crc32c(self) -> int:
        """CRC-32C of the parameters' checksums, in layout order."""
        return crc32c.value(self.entry_checksums.view(np.uint8))
