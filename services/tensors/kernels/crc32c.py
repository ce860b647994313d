"""CRC-32C of payloads: google-crc32c's, and for long ones on CPUs that multiply polynomials half the time of it.

google-crc32c walks three places of a payload at once, 5 KiB apart, which memory is not read ahead for: of what is in no
cache it checks 12 GB/s, of what is in one 27 GB/s. The compiled path goes straight on, at 28 and 53 GB/s.
"""

from __future__ import annotations

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from services.tensors.kernels import compiler

COMPILED = "services.tensors.kernels.compiled_crc32c"
"""The module of the compiled path."""

_LEAST_BYTES = 128 * 1024  # of less a call costs more than it saves
_FROM_ZERO = 0xFFFFFFFF  # a checksum that is extended as if nothing had been before


def value(content: bytes | memoryview | NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes, which are contiguous; without the GIL."""
    found = np.frombuffer(content, np.uint8)
    compiled = compiler.load(COMPILED) if found.size >= _LEAST_BYTES else None
    if compiled is None or not compiled.LANES:
        return int(google_crc32c.value(found))
    stop = found.size - found.size % compiled.BLOCK_BYTES
    remainder = np.empty(compiled.REMAINDER_BYTES, np.uint8)
    compiled.fold(found[:stop], remainder)
    return int(google_crc32c.extend(_FROM_ZERO, remainder.tobytes() + found[stop:].tobytes()))
