"""The tensor: a numpy array with two leading mesh axes, a dtype and a layout; and the checks that ops share."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mesh.emulator.device import MeshDevice
from mesh.emulator.memory import Buffer, count_bank_bytes
from mesh.emulator.mesh_mappers import MeshComposer, MeshMapper
from mesh.emulator.rounding import round_to_bfloat16
from mesh.emulator.types import FLOATING, NUMPY_TYPES, DataType, GeluVariant, Layout, Shape, StorageType

Array = npt.NDArray[Any]

_INPUT_TYPES = {
    np.dtype(np.float32): DataType.FLOAT32,
    np.dtype(np.uint32): DataType.UINT32,
    np.dtype(np.int32): DataType.INT32,
}


class Tensor:
    """A tensor over a mesh, or on the host if it is made without a device.

    The constructor copies a numpy array of float32, uint32 or int32. It raises TypeError for other arrays and for
    read-only ones, RuntimeError for a shard dimension that the mesh doesn't divide. Real ttnn aborts on float64.

    Attributes:
        array: elements, [rows or 1, columns or 1, *shape on a chip]. Size 1 means replicated along that mesh axis.
        buffer: memory shared with views.
        derived: gelu's variant and its distribution function of this operand, kept for the backward pass.
        dtype: dtype of the elements; bfloat16 is stored as float32.
        layout: row-major or tiled; a label that ops check.
        mesh: mesh that the tensor is placed over; None for a host tensor without a mapper.
        on_host: whether the elements are on the host.
    """

    __slots__ = ("array", "buffer", "derived", "dtype", "layout", "mesh", "on_host")

    array: Array
    dtype: DataType
    layout: Layout
    derived: tuple[GeluVariant, Array] | None
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
        """Size of the elements on one chip in bytes."""
        return int(np.prod(self.array.shape[2:])) * _element_bytes(self)

    def device(self) -> MeshDevice | None:
        """Return the mesh; None for a host tensor."""
        return None if self.on_host else self.mesh

    def storage_type(self) -> StorageType:
        """Return HOST or DEVICE."""
        return StorageType.HOST if self.on_host else StorageType.DEVICE

    def is_allocated(self) -> bool:
        """Return whether the buffer is allocated."""
        return self.buffer.allocated

    def cpu(self) -> Tensor:
        """Return a host tensor of the same elements and layout."""
        check("cpu", self, on_device=False)
        return wrap(self.array, self.dtype, self.layout, self.mesh, on_host=True)

    def to_numpy(self, mesh_composer: MeshComposer | None = None) -> Array:
        """Return the elements as a new row-major array, joined by the composer if there are several chips.

        Raises RuntimeError for bfloat16 and for a tensor over several chips without a composer. ttnn returns an object
        that is no array for bfloat16; `to_dtype` converts it first.
        """
        check("to_numpy", self, on_device=False)
        if self.dtype is DataType.BFLOAT16:
            raise RuntimeError("to_numpy: numpy has no bfloat16; use to_dtype(tensor, float32) first")
        if mesh_composer is not None:
            return mesh_composer.compose(self.array)
        if self.mesh is not None and self.mesh.chips != 1:
            raise RuntimeError("to_numpy: the tensor is distributed over a mesh; supply a mesh composer")
        return np.array(self.array[0, 0], order="C")

    def item(self) -> float:
        """Return the only element as a Python number. Raises RuntimeError if there are several."""
        check("item", self, on_device=False)
        if self.array.size != 1:
            raise RuntimeError(f"item: expected a single element, not {self.shape} over the mesh")
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
    """Return a tensor around `array`, which has mesh axes first and is neither copied nor rounded."""
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
    """Return a new buffer for the tensor's elements; it counts as allocated memory on a device."""
    mesh = tensor.mesh
    if mesh is None or tensor.on_host:
        return Buffer()
    tiled = tensor.layout is Layout.TILE
    return Buffer(mesh.memory, count_bank_bytes(tensor.array.shape[2:], _element_bytes(tensor), tiled))


def _element_bytes(tensor: Tensor) -> int:
    return 2 if tensor.dtype is DataType.BFLOAT16 else 4


def wrap_result(
    like: Tensor, array: Array, dtype: DataType | None = None, layout: Layout | None = None
) -> Tensor:
    """Return the result of an op as a tensor, rounded once if its dtype is bfloat16.

    Args:
        like: operand whose mesh, and by default dtype and layout, the result has.
        array: new array with the result, float32 for the float dtypes. It may be rounded in place.
        dtype: dtype of the result; None for that of `like`.
        layout: layout of the result; None for that of `like`.
    """
    dtype = like.dtype if dtype is None else dtype
    if dtype is DataType.BFLOAT16:
        array = round_to_bfloat16(np.ascontiguousarray(array))
    return wrap(array, dtype, like.layout if layout is None else layout, like.mesh)


def note_scratch(tensor: Tensor, copies: float, shape: tuple[int, ...] | None = None) -> None:
    """Count memory that ttnn's op has on the chip while it runs, beside what is allocated now.

    Args:
        tensor: operand or result of the op.
        copies: that memory in copies of the tensor.
        shape: shape of the copies on a chip, if another one than the tensor's.
    """
    if tensor.mesh is None or tensor.on_host:
        return
    bank_bytes = tensor.buffer.bank_bytes
    if shape is not None:
        bank_bytes = count_bank_bytes(shape, _element_bytes(tensor), tensor.layout is Layout.TILE)
    tensor.mesh.memory.note_scratch(math.ceil(copies * bank_bytes))


def wrap_view(base: Tensor, array: Array) -> Tensor:
    """Return a tensor that shares the buffer of `base`. As in ttnn, freeing one frees the other."""
    return wrap(array, base.dtype, base.layout, base.mesh, base.buffer)


def fill(output: Tensor, array: Array, op: str) -> Tensor:
    """Store `array` in the pre-allocated `output`, rounded to its dtype.

    Raises RuntimeError if the shape differs or another tensor shares the buffer.
    """
    if not is_sole_owner(output):
        raise RuntimeError(
            f"{op}: the output tensor shares its buffer with another tensor; allocate a separate output"
        )
    if tuple(output.array.shape[2:]) != tuple(array.shape[2:]):
        raise RuntimeError(f"{op}: output of shape {output.shape}, expected {Shape(array.shape[2:])}")
    if output.dtype is DataType.BFLOAT16:
        array = round_to_bfloat16(np.ascontiguousarray(array))
    output.array = array
    output.derived = None
    return output


def is_sole_owner(tensor: Tensor) -> bool:
    """Return whether no other tensor shares the buffer."""
    # Each tensor over a buffer holds one reference to it, and the argument of getrefcount is one more.
    return sys.getrefcount(tensor.buffer) <= 2


def check(op: str, tensor: object, *, on_device: bool = True) -> None:
    """Raise TypeError unless `tensor` is a Tensor, RuntimeError if it was freed or its device was closed.

    With `on_device`, a tensor on the host raises RuntimeError too.
    """
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
    """Check each tensor, and raise RuntimeError unless it is bfloat16 or float32."""
    for tensor in tensors:
        check(op, tensor)
        if tensor.dtype not in FLOATING:
            raise RuntimeError(f"{op}: {tensor.dtype} operand, expected bfloat16 or float32")


def check_tiled(op: str, *tensors: Tensor) -> None:
    """Check each tensor, and raise RuntimeError unless it is in tile layout."""
    for tensor in tensors:
        check(op, tensor)
        if tensor.layout is not Layout.TILE:
            raise RuntimeError(f"{op}: {tensor.layout} operand, expected Layout.TILE")


def check_shape(op: str, name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    """Raise RuntimeError unless the tensor's shape on a chip is the expected one."""
    if tensor.array.shape[2:] != tuple(expected):
        raise RuntimeError(f"{op}: {name} of shape {tensor.shape}, expected {Shape(expected)}")


def deallocate(tensor: Tensor, force: bool = True) -> None:
    """Free the buffer, which frees all views too. Without `force`, do nothing if there are views."""
    check("deallocate", tensor, on_device=False)
    if force or is_sole_owner(tensor):
        tensor.buffer.free()
        tensor.array = np.broadcast_to(tensor.array.dtype.type(0), tensor.array.shape)
        tensor.derived = None


def get_device_tensors(tensor: Tensor) -> list[Tensor]:
    """Return the tensor of each chip, in row-major mesh order. They share the buffer of `tensor`."""
    check("get_device_tensors", tensor, on_device=False)
    array, mesh = tensor.array, tensor.mesh
    if mesh is None:
        return [tensor]
    tensors = []
    for row in range(mesh.shape[0]):
        for col in range(mesh.shape[1]):
            chip_row, chip_col = min(row, array.shape[0] - 1), min(col, array.shape[1] - 1)
            chip = array[chip_row : chip_row + 1, chip_col : chip_col + 1]
            tensors.append(
                wrap(chip, tensor.dtype, tensor.layout, mesh.chip, tensor.buffer, on_host=tensor.on_host)
            )
    return tensors


def to_dtype(tensor: Tensor, dtype: DataType) -> Tensor:
    """Return a host tensor cast to another dtype. Raises RuntimeError for device tensors."""
    check("to_dtype", tensor, on_device=False)
    if not tensor.on_host:
        raise RuntimeError("to_dtype: Expected Tensor with HostStorage, got StorageType.DEVICE")
    array = tensor.array.astype(NUMPY_TYPES[dtype], order="C")
    if dtype is DataType.BFLOAT16:
        round_to_bfloat16(array)
    return wrap(array, dtype, tensor.layout, tensor.mesh, on_host=True)


def copy_host_to_device_tensor(host_tensor: Tensor, device_tensor: Tensor) -> None:
    """Copy the values of `host_tensor` into `device_tensor`, whose buffer stays in place.

    Raises RuntimeError unless shape on each chip, dtype and layout are equal.
    """
    op = "copy_host_to_device_tensor"
    check(op, host_tensor, on_device=False)
    check(op, device_tensor)
    if not host_tensor.on_host:
        raise RuntimeError(f"{op}: Expected Tensor with HostStorage, got {host_tensor.storage_type()}")
    if host_tensor.dtype is not device_tensor.dtype:
        raise RuntimeError(f"{op}: Host tensor has different dtype: {host_tensor.dtype}")
    if host_tensor.layout is not device_tensor.layout:
        raise RuntimeError(f"{op}: Host tensor has different page config: {host_tensor.layout}")
    fill(device_tensor, host_tensor.array, op)
