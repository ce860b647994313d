"""Files in the safetensors format, written piece by piece: no second copy of a model in memory, and hashable."""

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
    """The bytes of a safetensors file: its header, then tensor by tensor in the order given, wider types first.

    Args:
        tensors: float32 and int64 arrays by name; of a strided view one copy is made when its turn comes.
        metadata: what the header says beside the tensors; readers of PyTorch's want `{"format": "pt"}`.
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
