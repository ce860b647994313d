"""The tensor: a numpy array with two leading mesh axes, a dtype and a layout."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mesh.emulator.memory import Buffer, bank_bytes
from mesh.emulator.rounding import round_to_bfloat16
from mesh.emulator.types import FLOATING, NUMPY_TYPES, DataType, GeluVariant, Layout, Shape, StorageType

if TYPE_CHECKING:
    from mesh.emulator.device import MeshDevice
    from mesh.emulator.mesh_mappers import MeshComposer, MeshMapper

Array = npt.NDArray[Any]

_INPUT_TYPES = {
    np.dtype(np.float32): DataType.FLOAT32,
    np.dtype(np.uint32): DataType.UINT32,
    np.dtype(np.int32): DataType.INT32,
}


class Tensor:
    """One tensor over a mesh.

    `array` has shape `[rows or 1, cols or 1, *shape]`: 1 means replicated along that mesh axis, so it is stored and
    computed once. `shape` is the shape on each chip. A tensor without a device is a host tensor.

    Built from a numpy array of float32, uint32 or int32, copied. Raises TypeError for other arrays and for read-only
    ones, RuntimeError for a shard dimension that the mesh doesn't divide.
    """

    __slots__ = ("array", "buffer", "derived", "dtype", "layout", "mesh", "on_host")

    array: Array
    dtype: DataType
    layout: Layout
    derived: tuple[GeluVariant, Array] | None
    """What gelu keeps of its operand for the backward pass: the distribution function there."""
    mesh: MeshDevice | None
    on_host: bool
    buffer: Buffer

    def __init__(
        self,
        tensor: Array,
        data_type: DataType | None = None,
        device: MeshDevice | None = None,
        layout: Layout | None = None,
        *,
        mesh_mapper: MeshMapper | None = None,
    ) -> None:
        if not isinstance(tensor, np.ndarray) or tensor.dtype not in _INPUT_TYPES:
            what = f"{tensor.dtype} array" if isinstance(tensor, np.ndarray) else type(tensor)
            raise TypeError(f"Tensor(): {what}, expected a numpy array of float32, uint32 or int32")
        if not tensor.flags.writeable:
            raise TypeError("Tensor(): the array is read-only; copy it first")
        source = _INPUT_TYPES[tensor.dtype]
        dtype = source if data_type is None else data_type
        if (source in FLOATING) != (dtype in FLOATING):
            raise TypeError(
                f"Tensor(): a {tensor.dtype} array for {dtype}; convert it first, ttnn does so silently"
            )
        if mesh_mapper is None:
            placed = tensor[np.newaxis, np.newaxis]
        else:
            placed = mesh_mapper.place(tensor)
        array = np.array(placed, dtype=NUMPY_TYPES[dtype], order="C", copy=True)
        if dtype is DataType.BFLOAT16:
            round_to_bfloat16(array)
        if device is not None:
            device.check_open("Tensor()")
        self.array = array
        self.dtype = dtype
        self.layout = Layout.ROW_MAJOR if layout is None else layout
        self.derived = None
        self.mesh = mesh_mapper.device if device is None and mesh_mapper is not None else device
        self.on_host = device is None
        self.buffer = _buffer(self)

    @property
    def shape(self) -> Shape:
        """Shape on each chip."""
        return Shape(self.array.shape[2:])

    @property
    def volume_bytes(self) -> int:
        """Bytes of the elements on one chip."""
        return int(np.prod(self.array.shape[2:])) * (2 if self.dtype is DataType.BFLOAT16 else 4)

    def device(self) -> MeshDevice | None:
        """The mesh that holds it, None for a host tensor."""
        return None if self.on_host else self.mesh

    def storage_type(self) -> StorageType:
        """HOST or DEVICE."""
        return StorageType.HOST if self.on_host else StorageType.DEVICE

    def is_allocated(self) -> bool:
        """Whether its elements are still there."""
        return self.buffer.allocated

    def cpu(self) -> Tensor:
        """A host tensor of the same elements and layout."""
        check("cpu", self, on_device=False)
        return wrap(self.array, self.dtype, self.layout, self.mesh, on_host=True)

    def to_numpy(self, mesh_composer: MeshComposer | None = None) -> Array:
        """The elements in row-major order, per chip or put together by the composer (a fresh array).

        Raises RuntimeError for bfloat16 (where ttnn returns an object that is no array: cast with `to_dtype` first)
        and for a tensor over more than one chip without a composer.
        """
        check("to_numpy", self, on_device=False)
        if self.dtype is DataType.BFLOAT16:
            raise RuntimeError(
                "to_numpy: a bfloat16 tensor gives no array; use to_dtype(tensor, float32) first"
            )
        if mesh_composer is not None:
            return mesh_composer.compose(self.array)
        if self.mesh is not None and self.mesh.chips != 1:
            raise RuntimeError("to_numpy: the tensor is distributed over a mesh; supply a mesh composer")
        return np.array(self.array[0, 0], order="C")

    def item(self) -> float:
        """The only element as a Python number. Raises RuntimeError if there are more."""
        check("item", self, on_device=False)
        if self.array.size != 1:
            raise RuntimeError(f"item: a tensor of shape {self.shape} over the mesh has no single element")
        return float(self.array.reshape(-1)[0])

    def __repr__(self) -> str:
        return f"Tensor({self.shape}, {self.dtype}, {self.layout}, {self.storage_type()})"


def wrap(
    array: Array,
    dtype: DataType,
    layout: Layout,
    mesh: MeshDevice | None,
    buffer: Buffer | None = None,
    on_host: bool = False,
) -> Tensor:
    """A tensor around `array` (mesh axes first), which is neither copied nor rounded."""
    tensor = Tensor.__new__(Tensor)
    tensor.array = array
    tensor.dtype = dtype
    tensor.layout = layout
    tensor.derived = None
    tensor.mesh = mesh
    tensor.on_host = on_host
    tensor.buffer = _buffer(tensor) if buffer is None else buffer
    return tensor


def _buffer(tensor: Tensor) -> Buffer:
    """A new buffer for the tensor's elements, counted if it is on a device."""
    mesh = tensor.mesh
    if mesh is None or tensor.on_host:
        return Buffer()
    element_bytes = 2 if tensor.dtype is DataType.BFLOAT16 else 4
    return Buffer(
        mesh.memory, bank_bytes(tensor.array.shape[2:], element_bytes, tensor.layout is Layout.TILE)
    )


def result(like: Tensor, array: Array, dtype: DataType | None = None, layout: Layout | None = None) -> Tensor:
    """What an op computed from `like`: `array` (fresh, float32 for the float dtypes), rounded once if bfloat16."""
    dtype = like.dtype if dtype is None else dtype
    if dtype is DataType.BFLOAT16:
        array = round_to_bfloat16(np.ascontiguousarray(array))
    return wrap(array, dtype, like.layout if layout is None else layout, like.mesh)


def view(of: Tensor, array: Array) -> Tensor:
    """Another look at the buffer of `of`: ttnn doesn't copy here, so freeing one frees the other."""
    return wrap(array, of.dtype, of.layout, of.mesh, of.buffer)


def fill(output: Tensor, array: Array, op: str) -> Tensor:
    """Put `array` into the pre-allocated `output`, rounding as its dtype asks."""
    if not is_sole_owner(output):
        raise RuntimeError(
            f"{op}: the output tensor shares its buffer with another tensor; allocate one of its own"
        )
    if tuple(output.array.shape[2:]) != tuple(array.shape[2:]):
        raise RuntimeError(f"{op}: output of shape {output.shape}, expected {Shape(array.shape[2:])}")
    if output.dtype is DataType.BFLOAT16:
        array = round_to_bfloat16(np.ascontiguousarray(array))
    output.array = array
    output.derived = None
    return output


def is_sole_owner(tensor: Tensor) -> bool:
    """Whether no other tensor looks at its buffer."""
    # The tensors over a buffer are what refers to it, beside the reference that is being looked at.
    return sys.getrefcount(tensor.buffer) <= 2


def check(op: str, tensor: object, *, on_device: bool = True) -> None:
    """Raise TypeError if `tensor` is none, RuntimeError if it was freed or isn't on an open device (if it must)."""
    if tensor.__class__ is not Tensor:
        raise TypeError(
            f"{op}(): incompatible function arguments: {type(tensor).__name__}, expected a Tensor"
        )
    if not tensor.buffer.allocated:
        raise RuntimeError(f"{op}: the tensor was deallocated")
    if tensor.on_host:
        if on_device:
            raise RuntimeError(f"{op}: the tensor is on the host, expected one on a device")
    elif tensor.mesh is not None and not tensor.mesh.is_open:
        raise RuntimeError(f"{op}: the device was closed")


def check_floating(op: str, *tensors: Tensor) -> None:
    """`check` each tensor and refuse (RuntimeError) those that are neither bfloat16 nor float32."""
    for tensor in tensors:
        check(op, tensor)
        if tensor.dtype not in FLOATING:
            raise RuntimeError(f"{op}: {tensor.dtype} operand, expected bfloat16 or float32")


def check_tiled(op: str, *tensors: Tensor) -> None:
    """`check` each tensor and refuse (RuntimeError) those that aren't in tile layout."""
    for tensor in tensors:
        check(op, tensor)
        if tensor.layout is not Layout.TILE:
            raise RuntimeError(f"{op}: {tensor.layout} operand, expected Layout.TILE")


def check_shape(op: str, name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    """Refuse (RuntimeError) a tensor whose per-chip shape isn't the expected one."""
    if tensor.array.shape[2:] != tuple(expected):
        raise RuntimeError(f"{op}: {name} of shape {tensor.shape}, expected {Shape(expected)}")


def deallocate(tensor: Tensor, force: bool = True) -> None:
    """Free the buffer, and with it every view; without `force` only if no other tensor looks at it."""
    check("deallocate", tensor, on_device=False)
    if force or is_sole_owner(tensor):
        tensor.buffer.free()
        tensor.array = np.broadcast_to(tensor.array.dtype.type(0), tensor.array.shape)
        tensor.derived = None


def to_dtype(tensor: Tensor, dtype: DataType) -> Tensor:
    """A host tensor cast to another float dtype. Raises RuntimeError for device tensors."""
    check("to_dtype", tensor, on_device=False)
    if not tensor.on_host:
        raise RuntimeError("to_dtype: Expected Tensor with HostStorage, got StorageType.DEVICE")
    array = tensor.array.astype(NUMPY_TYPES[dtype], order="C")
    if dtype is DataType.BFLOAT16:
        round_to_bfloat16(array)
    return wrap(array, dtype, tensor.layout, tensor.mesh, on_host=True)
