"""Writer of safetensors files in pieces, so that a model needs no second copy in memory and can be hashed on the way.

The format is a little-endian uint64 with the header's length, a JSON header padded with spaces, and the tensors' bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.tensors.kernels.arithmetic import Float32Array

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
    yield make_header(((name, array.dtype.name, array.shape) for name, array in ordered), metadata)
    for _, array in ordered:
        yield _bytes_of(array)


def pieces_of(
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Float32Array],
    metadata: Mapping[str, str] | None = None,
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file of float32 tensors, of which one at a time is in memory.

    Args:
        shapes: shapes of the tensors by name.
        read: function that returns a tensor, given its name; called once for each, in order.
        metadata: metadata of the header.
    """
    yield make_header(((name, "float32", shape) for name, shape in shapes.items()), metadata)
    for name, shape in shapes.items():
        tensor = read(name)
        if tensor.shape != shape:
            raise ValueError(f"{name}: shape {tensor.shape}, expected {shape}")
        yield _bytes_of(tensor)


def make_header(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return the start of a file, given name, dtype and shape of each tensor."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, dtype, shape in tensors:
        size_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        header[name] = {
            "dtype": _DTYPES[dtype],
            "shape": list(shape),
            "data_offsets": [offset, offset + size_bytes],
        }
        offset += size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT_BYTES)
    return len(text).to_bytes(8, "little") + text


def _bytes_of(array: NDArray[np.generic]) -> memoryview:
    little_endian = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little_endian.reshape(-1).view(np.uint8).data
