"""CRC-32C (RFC 3720) of payloads: by google-crc32c, or by a compiled path that takes half the time.

The compiled path serves long payloads on CPUs that multiply polynomials in vector registers. google-crc32c reads three
streams 5 KiB apart, which defeats the hardware prefetcher: 12 GB/s from memory, 27 GB/s from cache. The compiled path
reads one stream, at 28 and 53 GB/s.
"""

from __future__ import annotations

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from services.tensors.kernels import compiler

COMPILED_MODULE = "services.tensors.kernels.compiled_crc32c"
"""Name of the module with the compiled path."""

_MIN_BYTES = 128 * 1024  # for fewer, the call costs more than it saves
_FROM_ZERO = 0xFFFFFFFF  # makes `extend` start from an internal state of 0


def value(content: bytes | memoryview | NDArray[np.uint8]) -> int:
    """Return the CRC-32C of contiguous bytes; releases the GIL."""
    found = np.frombuffer(content, np.uint8)
    compiled = compiler.load(COMPILED_MODULE) if found.size >= _MIN_BYTES else None
    if compiled is None or not compiled.LANES:
        return int(google_crc32c.value(found))
    stop = found.size - found.size % compiled.BLOCK_BYTES
    remainder = np.empty(compiled.REMAINDER_BYTES, np.uint8)
    compiled.fold(found[:stop], remainder)
    return int(google_crc32c.extend(_FROM_ZERO, remainder.tobytes() + found[stop:].tobytes()))
