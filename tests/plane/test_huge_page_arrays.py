"""Arrays that are used together start at different offsets in their pages."""

from __future__ import annotations

import numpy as np
import pytest

from plane.huge_page_arrays import allocate_zeros


@pytest.mark.parametrize("elements", [1, 4097, 1 << 20])
def test_arrays_are_zero_and_start_at_different_page_offsets(elements: int) -> None:
    arrays = [allocate_zeros(elements, slot) for slot in range(4)]
    for array in arrays:
        assert (array.shape, array.dtype) == ((elements,), np.float32)
        assert not array.any()
        assert array.flags.aligned and array.flags.c_contiguous and array.flags.writeable
    page_offsets = sorted(array.ctypes.data % 4096 for array in arrays)
    assert min(np.diff(page_offsets)) >= 512
