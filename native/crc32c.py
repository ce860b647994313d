"""CRC-32C (RFC 3720) of messages and payloads."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from native.library import C

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHORT_BYTES = 16 * 1024  # takes about a microsecond, less than to give up the GIL and get it back

_prototype = (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
_of_long = ctypes.CFUNCTYPE(*_prototype)(("tiermesh_crc32c", C))
_of_short = ctypes.PYFUNCTYPE(*_prototype)(("tiermesh_crc32c", C))


def value(content: bytes | bytearray | memoryview | NDArray[Any]) -> int:
    """Return the CRC-32C of contiguous bytes. Releases the GIL if there are many."""
    if isinstance(content, bytes):
        start: bytes | int = content
        size = len(content)
    else:
        import numpy as np  # commands of people start without it: their messages are bytes

        array = np.frombuffer(content, np.uint8)
        start, size = array.ctypes.data, array.size
    compute = _of_short if size < _SHORT_BYTES else _of_long
    found: int = compute(0, start, size)
    return found
