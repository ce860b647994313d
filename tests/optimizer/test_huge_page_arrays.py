"""Arrays used together begin in different places of their pages."""

from __future__ import annotations

import numpy as np
import pytest

from optimizer.huge_page_arrays import zeros


@pytest.mark.parametrize("elements", [1, 4097, 1 << 20])
def test_arrays_are_zero_and_begin_apart(elements: int) -> None:
    arrays = [zeros(elements, place) for place in range(4)]
    for array in arrays:
        assert (array.shape, array.dtype) == ((elements,), np.float32)
        assert not array.any()
        assert array.flags.aligned and array.flags.c_contiguous and array.flags.writeable
    begins = sorted(array.ctypes.data % 4096 for array in arrays)
    assert min(np.diff(begins)) >= 512
