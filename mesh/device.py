"""The mesh that this process drives: opened once, closed in order."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any

from threadpoolctl import threadpool_limits

from mesh.axes import Axes
from mesh.backend import device_module
from mesh.descriptors.choose import given_shape
from mesh.emulator.parallel import use_threads
from mesh.ttnn_errors import why_not_opened
from services.errors import Failed, Refused

DTYPES = ("bfloat16", "float32")

_ONE_CHIP = Axes()

_TRACE_REGION_BYTES = 128 << 20
"""Device memory kept for commands, of each chip: a few kilobytes for each of a step's thousands of operations."""

_open_lock = threading.Lock()
_open_mesh: Mesh | None = None


class Mesh:
    """An open mesh.

    Attributes:
        tt: the device module; every op goes through it.
        shape: (rows, cols).
        axes: which mesh axis carries which parallelism.
        dtype: `tt`'s dtype of weights and activations.
        backend: name of the device module, `ttnn` or `emulator`.
        arch: name of the chips' architecture.
    """

    def __init__(self, tt: Any, handle: Any, shape: tuple[int, int], axes: Axes, dtype: Any) -> None:
        self.tt = tt
        self._handle = handle
        self.shape = shape
        self.axes = axes
        self.dtype = dtype
        self.backend = str(tt.__name__).rpartition(".")[2]
        self.arch = str(handle.arch()).rpartition(".")[2].lower()
        self._closed = False

    @property
    def handle(self) -> Any:
        """The mesh device that `tt` opened (Failed once it is closed: ttnn would crash)."""
        if self._closed:
            raise Failed(f"mesh {list(self.shape)}: is closed; open it with open_mesh before it is used")
        return self._handle

    @property
    def chips(self) -> int:
        """Number of chips."""
        return self.shape[0] * self.shape[1]

    @property
    def data_size(self) -> int:
        """Chips along the data axis, 1 without one."""
        return 1 if self.axes.data is None else self.shape[self.axes.data]

    @property
    def tensor_size(self) -> int:
        """Chips along the tensor axis, 1 without one."""
        return 1 if self.axes.tensor is None else self.shape[self.axes.tensor]

    def close(self) -> None:
        """Wait for the device and close it. Closing twice is no error; tensors are useless afterwards."""
        global _open_mesh
        with _open_lock:
            if self._closed:
                return
            self._closed = True
            _open_mesh = None
            try:
                self.tt.synchronize_device(self._handle)
            finally:
                try:
                    self.tt.close_mesh_device(self._handle)
                finally:
                    _links_down(self.tt, self.shape)

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_mesh(
    mesh_shape: tuple[int, int] | list[int],
    *,
    backend: str = "auto",
    dtype: str | None = None,
    axes: Axes = _ONE_CHIP,
    trace: bool = False,
    threads: int = 1,
    module: Any = None,
) -> Mesh:
    """Open a mesh of (rows, cols) chips.

    Args:
        mesh_shape: rows and cols.
        backend: `auto`, `ttnn` or `emulator`.
        dtype: `bfloat16` or `float32`; None is bfloat16 on ttnn, float32 on the emulator.
        axes: which axis carries which strategy; chips along an axis without one do the same work twice.
        trace: whether to keep room for traces of commands.
        threads: that the emulator computes with; bits do not hang on it, and a device has its own.
        module: a device module to use instead of the backend's.

    Raises Refused for values that can't be, Failed if the device refuses, or if this process has a mesh open: a
    second one crashes ttnn.
    """
    global _open_mesh
    if len(mesh_shape) != 2 or min(mesh_shape) < 1:
        raise Refused(f"device_config.mesh_shape: {list(mesh_shape)}, expected [rows, cols], both 1 or more")
    shape = (int(mesh_shape[0]), int(mesh_shape[1]))
    tt = device_module(backend, shape) if module is None else module
    emulated = str(tt.__name__) == "mesh.emulator"
    if dtype is None:
        dtype = "float32" if emulated else "bfloat16"
    if dtype not in DTYPES:
        raise Refused(f"device_config.dtype: {dtype!r}, expected one of {', '.join(DTYPES)}")
    if dtype == "float32" and not emulated:
        raise Refused("device_config.dtype: 'float32' needs ops that ttnn has in bfloat16 only; use bfloat16")
    with _open_lock:
        if _open_mesh is not None:
            raise Failed(
                f"mesh {list(shape)}: this process has a mesh of {list(_open_mesh.shape)} open; close it first"
            )
        if emulated:
            # BLAS splits products as its threads are, so bits would hang on them: the emulator has threads of its own.
            threadpool_limits(limits=1, user_api="blas")
            use_threads(threads)
        try:
            if shape != (1, 1):
                tt.set_fabric_config(tt.FabricConfig.FABRIC_1D)
            room = {"trace_region_size": _TRACE_REGION_BYTES} if trace else {}
            handle = tt.open_mesh_device(tt.MeshShape(*shape), **room)
        except RuntimeError as error:
            with suppress(RuntimeError):  # what is said first matters
                _links_down(tt, shape)
            if emulated:
                raise Refused(
                    f"device_config.mesh_shape: {list(shape)} can't be emulated: {error}"
                ) from error
            reason = why_not_opened(error)
            raise Failed(f"device_config.mesh_shape: {list(shape)} can't be opened: {reason}") from error
        _open_mesh = Mesh(tt, handle, shape, axes, getattr(tt, dtype))
        return _open_mesh


def whole_mesh(backend: str) -> tuple[int, int]:
    """Rows and columns of all devices of this host: as the given mesh graph descriptor has them, else as ttnn does.

    Raises:
        Refused: the backend or the descriptor can't be used.
        Failed: no devices are found.
    """
    given = given_shape(os.environ)
    tt = device_module(backend, given or (1, 1))
    if str(tt.__name__) == "mesh.emulator":
        return (1, 1)
    if given is not None:
        return given
    try:
        rows, columns = tt._ttnn.multi_device.SystemMeshDescriptor().shape()
    except RuntimeError as error:
        raise Failed(f"the devices of this host can't be found: {why_not_opened(error)}") from error
    return int(rows), int(columns)


def _links_down(tt: Any, shape: tuple[int, int]) -> None:
    """What is left up would keep the next mesh of this host from opening."""
    if shape != (1, 1):
        tt.set_fabric_config(tt.FabricConfig.DISABLED)
