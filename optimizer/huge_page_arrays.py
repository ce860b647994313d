"""Memory of the optimizer's flat arrays, for kernels that walk through several of them side by side."""

from __future__ import annotations

import numpy as np

from services.tensors.kernels.arithmetic import Float32Array

_PAGE_BYTES = 4096
_STAGGER_BYTES = 17 * 64  # a few cache lines more than a quarter of a page, so that four arrays keep apart


def zeros(elements: int, place: int) -> Float32Array:
    """[elements] float32, all zero, in huge pages where the system has them.

    Args:
        elements: of the array.
        place: of the array among those used together, from 0: each begins elsewhere in its page. CPUs tell loads from
            earlier stores by the address within a page, and would wait for stores to another array.
    """
    # numpy asks for huge pages when it doesn't zero the memory itself.
    padded = np.empty(elements + 2 * _PAGE_BYTES // 4, np.float32)
    skip_bytes = (place * _STAGGER_BYTES - padded.ctypes.data) % _PAGE_BYTES
    array = padded[skip_bytes // 4 : skip_bytes // 4 + elements]
    array[:] = 0.0
    return array
