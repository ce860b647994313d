"""Allocation of the optimizer's flat arrays: huge pages, for kernels that walk through several arrays at once."""

from __future__ import annotations

import numpy as np

from services.tensors.kernels.arithmetic import Float32Array

_PAGE_BYTES = 4096
_STAGGER_BYTES = 17 * 64
"""Distance between two arrays' offsets in a page: a quarter page and a cache line, so that four arrays keep apart."""


def allocate_zeros(elements: int, slot: int) -> Float32Array:
    """Return an array of zeros, [elements] float32, in huge pages where the system has them.

    CPUs tell loads from earlier stores by the address within a page. With equal offsets in their pages, a load from one
    array would wait for a store to another one.

    Args:
        elements: length of the array.
        slot: number of the array among those used together, from 0; it decides the offset in the page.
    """
    # numpy asks for huge pages for memory that it does not zero itself.
    padded = np.empty(elements + 2 * _PAGE_BYTES // 4, np.float32)
    skip_bytes = (slot * _STAGGER_BYTES - padded.ctypes.data) % _PAGE_BYTES
    array = padded[skip_bytes // 4 : skip_bytes // 4 + elements]
    array[:] = 0.0
    return array
