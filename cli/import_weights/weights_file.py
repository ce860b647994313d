"""Files of weights that tt-train's C++ trainer saves, in MessagePack: an index of all tensors, and one at a time.

tt-train saves one map. It has these keys for each parameter, where the prefix and the module are `transformer` for a
GPT-2 and `llama` for a Llama. Each value is a pair of the number of its C++ type and the value itself:

    PREFIX/MODULE/tok_emb/weight/value/shape        bytes: little-endian uint32 for each dimension
    PREFIX/MODULE/tok_emb/weight/value/data_type    number of tt-metal's DataType
    PREFIX/MODULE/tok_emb/weight/value/data         list of float32

Other keys are about gradients, the optimizer and the schedule. MessagePack for C++ writes a float without a fraction as
an integer, so a list mixes both.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np
import numpy.typing as npt

from services.corpora.reading_progress import report_reading
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import one_line, printable, printable_path
from services.tensors.kernels.arithmetic import Float32Array

MOST_KEYS = 1 << 18
"""Largest number of keys: a Llama of 126 blocks has some 30,000, with its optimizer's state."""
_KEY_BYTES = 512
_BUFFER_BYTES = 1 << 20
_BLOCK_VALUES = 1 << 13
"""Values of a list that are unpacked at a time."""
_FLOAT = 0xCA
_FLOAT_BYTES = 5
_LARGEST_NUMBER_BYTES = 9
_LIST_HEAD_BYTES = 5
_MOST_DIMENSIONS = 8
_DATA_TYPES = {0: "bfloat16", 1: "float32"}
_KEY = re.compile(
    r"(?:transformer|llama|gpt2)/((?:transformer|llama)/.+?)/"
    r"(?:value/(shape|data_type|data)|value/.+|requires_grads|has_grads|grad/.+)"
)


@dataclass
class _Found:
    """What the file says of a tensor, as far as it was read."""

    shape: tuple[int, ...] | None = None
    data_type: Any = None
    offset: int | None = None


class WeightsFile:
    """An open file of weights; see `open_weights`.

    Attributes:
        place: the file, for errors.
        shapes: shapes of the parameters as tt-train names them, such as `transformer/tok_emb/weight`.
        left_out: numbers of tensors by the first part of their names, for keys that are about no parameter.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.place = printable_path(path)
        self._file = file
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.left_out: Counter[str] = Counter()
        self._offsets: dict[str, int] = {}
        self._index(path)

    def read(self, name: str) -> Float32Array:
        """Return a parameter in its shape.

        Raises:
            Refused: it has not as many numbers as its shape says, or something else than numbers.
        """
        shape, offset = self.shapes[name], self._offsets[name]
        count = math.prod(shape)
        listed, offset = self._unpack_list_head(offset)
        if listed != count:
            raise Refused(
                f"{self.place}: tensor {name} has {'no list' if listed is None else listed} as data, expected a list "
                f"of {count} by its shape {list(shape)}; save the weights again"
            )
        values = np.empty(count, np.float32)
        for start in range(0, count, _BLOCK_VALUES):
            block = values[start : start + _BLOCK_VALUES]
            numbers, offset = self._unpack_numbers(offset, block.size)
            if numbers is None:
                raise Refused(
                    f"{self.place}: tensor {name} has something else than numbers at position {start} or later, "
                    "expected numbers alone; save the weights again"
                )
            block[:] = numbers
        return values.reshape(shape)

    def _unpack_list_head(self, offset: int) -> tuple[int | None, int]:
        """Return the length of a list, or None if there is no list, and where its first value is."""
        self._file.seek(offset)
        unpacker = msgpack.Unpacker()
        unpacker.feed(self._file.read(_LIST_HEAD_BYTES))
        try:
            return unpacker.read_array_header(), offset + unpacker.tell()
        except ValueError:
            return None, offset

    def _unpack_numbers(
        self, offset: int, count: int
    ) -> tuple[list[float] | npt.NDArray[np.float32] | None, int]:
        """Return so many values of a list, or None if some are no numbers, and where the next one is."""
        self._file.seek(offset)
        content = self._file.read(count * _LARGEST_NUMBER_BYTES)
        if len(content) >= count * _FLOAT_BYTES:
            rows = np.frombuffer(content, np.uint8, count * _FLOAT_BYTES).reshape(count, _FLOAT_BYTES)
            if (rows[:, 0] == _FLOAT).all():  # as nearly always, and ten times as fast
                return rows[:, 1:].copy().view(">f4")[:, 0], offset + count * _FLOAT_BYTES
        head = b"\xdd" + count.to_bytes(4, "big")  # makes a list of them, which is unpacked in one call
        unpacker = msgpack.Unpacker(max_array_len=count, raw=True)
        unpacker.feed(head + content)
        try:
            numbers = unpacker.unpack()
        except (ValueError, msgpack.OutOfData):
            return None, offset
        is_numbers = {*map(type, numbers)} <= {int, float}
        return numbers if is_numbers else None, offset + unpacker.tell() - len(head)

    def _index(self, path: Path) -> None:
        """Find all tensors (Refused)."""
        size_bytes = os.fstat(self._file.fileno()).st_size
        unpacker = msgpack.Unpacker(
            self._file,
            read_size=_BUFFER_BYTES // 4,
            max_buffer_size=_BUFFER_BYTES,
            max_str_len=_KEY_BYTES,
            max_bin_len=_KEY_BYTES,
            max_array_len=0,
            max_map_len=0,
            max_ext_len=0,
        )
        found: dict[str, _Found] = {}
        try:
            keys = unpacker.read_map_header()
            if not 0 < keys <= MOST_KEYS:
                raise ValueError(f"a map of {keys} keys, expected 1 to {MOST_KEYS}")
            for _ in range(keys):
                self._index_value(unpacker, found)
                report_reading(path, unpacker.tell(), size_bytes)
        except msgpack.OutOfData:
            raise Refused(
                f"{self.place}: ends within a value at byte {unpacker.tell()}, so it is cut off; copy it again"
            ) from None
        except (ValueError, msgpack.BufferFull) as error:
            reason = one_line(str(error), 80) or type(error).__name__
            raise Refused(
                f"{self.place}: is no file of tt-train's weights (byte {unpacker.tell()}: {reason}); give a .msgpack "
                "file that its nano_gpt has saved"
            ) from None
        if unpacker.tell() != size_bytes:
            raise Refused(
                f"{self.place}: {size_bytes - unpacker.tell()} bytes follow the map of weights, expected none; copy "
                "it again"
            )
        for name, tensor in found.items():
            self._add(name, tensor)

    def _index_value(self, unpacker: msgpack.Unpacker, found: dict[str, _Found]) -> None:
        """Read a key, and note its value if it is about a tensor (ValueError, OutOfData)."""
        key = unpacker.unpack()
        if not isinstance(key, str):
            raise ValueError(f"a key that is a {type(key).__name__}, expected text")
        if unpacker.read_array_header() != 2:
            raise ValueError(f"{printable(key, 60)} has no pair of a type and a value")
        unpacker.skip()
        match = _KEY.fullmatch(key)
        if match is None:
            self.left_out[key.partition("/")[0]] += key.endswith("/data")
            unpacker.skip()
            return
        tensor = found.setdefault(match[1], _Found())
        match match[2]:
            case "shape":
                tensor.shape = self._parse_shape(unpacker.unpack(), match[1])
            case "data_type":
                tensor.data_type = unpacker.unpack()
            case "data":
                tensor.offset = unpacker.tell()
                unpacker.skip()
            case _:
                unpacker.skip()

    def _parse_shape(self, value: object, name: str) -> tuple[int, ...]:
        """Return a tensor's shape (Refused)."""
        if not isinstance(value, bytes) or len(value) % 4 or not 0 < len(value) <= 4 * _MOST_DIMENSIONS:
            found = f"{len(value)} bytes" if isinstance(value, bytes) else f"a {type(value).__name__}"
            raise Refused(
                f"{self.place}: tensor {printable(name, 100)} has {found} as shape, expected 4 bytes for each of at "
                f"most {_MOST_DIMENSIONS} dimensions; save the weights again"
            )
        return tuple(np.frombuffer(value, "<u4").tolist())

    def _add(self, name: str, tensor: _Found) -> None:
        """Take a tensor over, after a check that it is complete (Refused)."""
        if tensor.shape is None or tensor.offset is None:
            missing = "shape" if tensor.shape is None else "data"
            raise Refused(
                f"{self.place}: tensor {name} has no {missing}, expected shape, data_type and data; save the weights "
                "again"
            )
        if tensor.data_type not in _DATA_TYPES:
            expected = ", ".join(f"{number} ({kind})" for number, kind in _DATA_TYPES.items())
            raise Refused(
                f"{self.place}: tensor {name} has data_type {tensor.data_type}, expected one of {expected}; save the "
                "weights in bfloat16"
            )
        self.shapes[name] = tensor.shape
        self._offsets[name] = tensor.offset


@contextmanager
def open_weights(path: Path) -> Iterator[WeightsFile]:
    """Open a file of weights, and find all tensors in it.

    Raises:
        Refused: it can't be read, is cut off, or is no such file.
    """
    with open_input_file("", path) as file:
        yield WeightsFile(path, file)
