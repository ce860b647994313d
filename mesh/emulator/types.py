"""The small types in calls of ttnn: dtypes, layouts, shapes, variants, kernel configurations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np


class DataType(Enum):
    """Element type of a tensor. bfloat16 is stored as float32 values that bfloat16 can represent."""

    BFLOAT16 = 0
    FLOAT32 = 1
    UINT32 = 2
    INT32 = 7


class Layout(Enum):
    """Order of elements in a buffer. In the emulator it is a label, which ops check as on the device."""

    ROW_MAJOR = 0
    TILE = 1


class StorageType(Enum):
    """Location of a tensor's elements."""

    HOST = 0
    DEVICE = 1


class GeluVariant(Enum):
    """Variant of gelu: exact, with the error function, or the tanh approximation."""

    Accurate = 0
    Tanh = 1


class MathFidelity(Enum):
    """Passes of the matrix engine. No effect in the emulator, whose products are float32."""

    LoFi = 0
    HiFi2 = 2
    HiFi3 = 3
    HiFi4 = 4


class FabricConfig(Enum):
    """Routing over the ethernet links between chips."""

    DISABLED = 0
    FABRIC_1D = 1
    FABRIC_1D_RING = 2
    FABRIC_2D = 3


class Arch(Enum):
    """Architecture of a device."""

    EMULATOR = 0


bfloat16 = DataType.BFLOAT16
float32 = DataType.FLOAT32
uint32 = DataType.UINT32
int32 = DataType.INT32
ROW_MAJOR_LAYOUT = Layout.ROW_MAJOR
TILE_LAYOUT = Layout.TILE

NUMPY_TYPES: dict[DataType, type[np.generic]] = {
    DataType.BFLOAT16: np.float32,
    DataType.FLOAT32: np.float32,
    DataType.UINT32: np.uint32,
    DataType.INT32: np.int32,
}
"""Numpy type that stores the elements of each dtype."""

FLOATING = frozenset({DataType.BFLOAT16, DataType.FLOAT32})


class Dimensions:
    """Sizes that can be indexed, iterated and compared with sequences. As in ttnn, they can't be sliced."""

    __slots__ = ("_sizes",)

    def __init__(self, shape: Sequence[int]) -> None:
        self._sizes = tuple(int(size) for size in shape)

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[int]:
        return iter(self._sizes)

    def __getitem__(self, index: int) -> int:
        if isinstance(index, slice):
            raise TypeError("__getitem__(): incompatible function arguments: a shape takes no slices")
        return self._sizes[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Dimensions, list, tuple)):
            return self._sizes == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._sizes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._sizes)})"


class Shape(Dimensions):
    """Shape of a tensor on each chip."""

    __slots__ = ()

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self._sizes)


class MeshShape(Dimensions):
    """Shape of a mesh: `MeshShape(rows, cols)` or `MeshShape([rows, cols])`."""

    __slots__ = ()

    def __init__(self, *sizes: int | Sequence[int]) -> None:
        flat: list[int] = []
        for size in sizes:
            if isinstance(size, int):
                flat.append(size)
            else:
                flat.extend(size)
        if len(flat) != 2:
            raise TypeError(f"MeshShape: {len(flat)} sizes, expected rows and columns")
        super().__init__(flat)


@dataclass(frozen=True, kw_only=True)
class WormholeComputeKernelConfig:
    """Options of a compute kernel. No effect in the emulator."""

    math_fidelity: MathFidelity = MathFidelity.LoFi
    math_approx_mode: bool = True
    fp32_dest_acc_en: bool = False
    packer_l1_acc: bool = False
