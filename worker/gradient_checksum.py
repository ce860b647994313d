"""The checksum of one micro-batch's own gradient, taken before any other is added to it.

It is made parameter by parameter, so that it doesn't hang on how the gradient came, and costs one pass over it.
"""

from __future__ import annotations

import numpy as np

from services.tensors.kernels import crc32c
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout


class GradientChecksum:
    """Of a gradient that comes from its end to its start.

    Args:
        layout: of it.
        values: [elements] float32, where it comes to be.
    """

    def __init__(self, layout: Layout, values: Float32Array) -> None:
        self._entries = layout.entries
        self._values = values
        self._of_entries = np.zeros(len(layout.entries), "<u4")
        self._missing = len(layout.entries)

    def down_to(self, offset: int) -> None:
        """The gradient is in place from this offset, an entry's, to its end."""
        while self._missing and self._entries[self._missing - 1].offset >= offset:
            self._missing -= 1
            entry = self._entries[self._missing]
            part = self._values[entry.offset : entry.stop].view(np.uint8)
            self._of_entries[self._missing] = crc32c.value(part)

    @property
    def crc32c(self) -> int:
        """Of all of it."""
        return crc32c.value(self._of_entries.view(np.uint8))
