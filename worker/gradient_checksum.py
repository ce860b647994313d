"""The checksum of one micro-batch's gradient, taken before other gradients are added to it."""

from __future__ import annotations

import numpy as np

from services.tensors.kernels import crc32c
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout


class GradientChecksum:
    """Checksum of a gradient that is computed from its end to its start.

    Each parameter has a checksum of its own. So the result does not depend on the pieces in which the gradient becomes
    ready. It costs one pass over the gradient.

    Args:
        layout: layout of the gradient.
        values: [elements] float32, the array that the gradient is written to.
    """

    def __init__(self, layout: Layout, values: Float32Array) -> None:
        self._entries = layout.entries
        self._values = values
        self._entry_checksums = np.zeros(len(layout.entries), "<u4")
        self._missing = len(layout.entries)

    def advance_to(self, offset: int) -> None:
        """Take in the gradient from this offset, the start of an entry, to its end."""
        while self._missing and self._entries[self._missing - 1].offset >= offset:
            self._missing -= 1
            entry = self._entries[self._missing]
            values = self._values[entry.offset : entry.stop].view(np.uint8)
            self._entry_checksums[self._missing] = crc32c.value(values)

    @property
    def crc32c(self) -> int:
        """CRC-32C of the parameters' checksums, in layout order."""
        return crc32c.value(self._entry_checksums.view(np.uint8))
