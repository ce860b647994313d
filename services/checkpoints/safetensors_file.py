"""Writer of safetensors files in pieces, so that a model needs no second copy in memory and can be hashed on the way.

The format is a little-endian uint64 with the header's length, a JSON header padded with spaces, and the tensors' bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {"float32": "F32", "int64": "I64"}
_ALIGNMENT_BYTES = 8


def pieces(
    tensors: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file: the header, then each tensor, wider types first, otherwise in order.

    Args:
        tensors: float32 and int64 arrays by name. A strided view is copied when its turn comes.
        metadata: metadata of the header. Loaders for PyTorch expect `{"format": "pt"}`.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, array in ordered:
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    yield len(text).to_bytes(8, "little") + text
    for _, array in ordered:
        little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        yield little_endian.reshape(-1).view(np.uint8).data
