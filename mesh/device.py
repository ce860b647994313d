"""The one mesh of this process: opened once, closed in a fixed order."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from threadpoolctl import threadpool_limits

from mesh.axes import Axes
from mesh.backend import drives_chips, has_device, load_device_module
from mesh.descriptors.choose import read_configured_shape
from mesh.emulator.device import MAX_CHIPS
from mesh.emulator.parallel import use_threads
from mesh.ttnn_errors import explain_open_failure
from services.errors import Failed, Refused

DTYPES = ("bfloat16", "float32")

_NO_PARALLELISM = Axes()

_TRACE_REGION_BYTES = 128 << 20
"""Memory of each chip reserved for traces: some kilobytes for each of a step's thousands of ops."""

_open_lock = threading.Lock()
_open_mesh: Mesh | None = None


class Mesh:
    """An open mesh.

    Attributes:
        tt: device module that every op goes through.
        shape: (rows, columns).
        axes: mesh axis of each parallel strategy.
        dtype: dtype of weights and activations, a constant of `tt`.
        backend: name of the device module, `ttnn` or `emulator`.
        arch: name of the chips' architecture, such as `wormhole_b0`.
        chip_ids: id of each chip on its host, row by row.
    """

    def __init__(self, tt: Any, handle: Any, shape: tuple[int, int], axes: Axes, dtype: Any) -> None:
        self.tt = tt
        self._handle = handle
        self.shape = shape
        self.axes = axes
        self.dtype = dtype
        self.backend = str(tt.__name__).rpartition(".")[2]
        self.arch = str(handle.arch()).rpartition(".")[2].lower()
        self.chip_ids = tuple(int(each) for each in handle.get_device_ids())
        self._closed = False
        self._submeshes: tuple[Mesh, ...] = ()

    @property
    def handle(self) -> Any:
        """Mesh device that `tt` opened.

        Raises:
            Failed: the mesh is closed. ttnn would crash when it uses a closed mesh.
        """
        if self._closed:
            raise Failed(f"mesh {list(self.shape)}: is closed; open one with mesh.device.open_mesh")
        return self._handle

    @property
    def chips(self) -> int:
        """Number of chips in the mesh."""
        return self.shape[0] * self.shape[1]

    @property
    def cores(self) -> int | None:
        """Number of compute cores of all chips; None on the emulator, which has none."""
        if self.backend == "emulator":
            return None
        grid = self.handle.compute_with_storage_grid_size()
        return int(grid.x) * int(grid.y) * self.chips

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed."""
        return not self._closed

    @property
    def is_divided(self) -> bool:
        """Whether it has submeshes, which it can't be divided into again."""
        return bool(self._submeshes)

    @property
    def data_size(self) -> int:
        """Number of chips along the data axis; 1 without a data axis."""
        return 1 if self.axes.data is None else self.shape[self.axes.data]

    @property
    def tensor_size(self) -> int:
        """Number of chips along the tensor axis; 1 without a tensor axis."""
        return 1 if self.axes.tensor is None else self.shape[self.axes.tensor]

    def split(self, parts: int, axes: Axes) -> tuple[Mesh, ...]:
        """Divide the rows over submeshes, which are closed with this mesh. It can be divided once.

        Args:
            parts: number of submeshes, which divides the rows.
            axes: mesh axis of each parallel strategy on a submesh.
        """
        shape = (self.shape[0] // parts, self.shape[1])
        handles = self.handle.create_submeshes(self.tt.MeshShape(*shape))
        self._submeshes = tuple(Mesh(self.tt, handle, shape, axes, self.dtype) for handle in handles)
        return self._submeshes

    def synchronise(self) -> None:
        """Wait until the devices have done all that was asked of them."""
        self.tt.synchronize_device(self.handle)

    def close(self) -> None:
        """Wait for the device and close it. Closing twice is allowed; tensors can't be used afterwards."""
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
                    for each in self._submeshes:
                        each._closed = True
                        self.tt.close_mesh_device(each._handle)
                    self.tt.close_mesh_device(self._handle)
                finally:
                    _disable_fabric(self.tt, self.shape)

    def __enter__(self) -> Mesh:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_host_mesh() -> Mesh:
    """Open a mesh of one chip in this host's memory, for what names parameters and computes nothing."""
    return open_mesh((1, 1), backend="emulator")


def open_mesh(
    mesh_shape: tuple[int, int] | list[int],
    *,
    backend: str = "auto",
    dtype: str | None = None,
    axes: Axes = _NO_PARALLELISM,
    trace: bool = False,
    threads: int = 1,
    device_ids: Sequence[int] = (),
    module: Any = None,
) -> Mesh:
    """Open a mesh of (rows, columns) chips.

    Args:
        mesh_shape: rows and columns.
        backend: `auto`, `ttnn` or `emulator`.
        dtype: `bfloat16` or `float32`; None is bfloat16 on ttnn and float32 on the emulator.
        axes: mesh axis of each parallel strategy. Chips along an axis without a strategy repeat the same work.
        trace: whether to reserve device memory for command traces.
        threads: number of threads of the emulator. Results don't depend on it, and ttnn ignores it.
        device_ids: ids of the chips, row by row, as ttnn counts those in TT_VISIBLE_DEVICES; empty to take them in the
            order of their links. The emulator has no chips and ignores them.
        module: device module to use in place of the backend's.

    Raises:
        Refused: an argument has a value that is not possible.
        Failed: the device refuses, or this process has a mesh open. A second open mesh would crash ttnn.
    """
    global _open_mesh
    if len(mesh_shape) != 2 or min(mesh_shape) < 1:
        raise Refused(
            f"device_config.mesh_shape: {list(mesh_shape)}, expected [rows, columns], both 1 or more"
        )
    shape = (int(mesh_shape[0]), int(mesh_shape[1]))
    tt = load_device_module(backend, shape) if module is None else module
    emulated = str(tt.__name__) == "mesh.emulator"
    if dtype is None:
        dtype = "float32" if emulated else "bfloat16"
    if dtype not in DTYPES:
        raise Refused(f"device_config.dtype: {dtype!r}, expected one of {', '.join(DTYPES)}")
    if dtype == "float32" and not emulated:
        raise Refused(
            "device_config.dtype: 'float32' needs ops that ttnn has in bfloat16 only; set bfloat16, "
            "or backend: emulator"
        )
    with _open_lock:
        if _open_mesh is not None:
            raise Failed(
                f"mesh {list(shape)}: this process has a mesh of {list(_open_mesh.shape)} open and can have "
                "only one; close it first"
            )
        if emulated:
            # BLAS splits products by its number of threads, which changes bits. The emulator has its own threads.
            threadpool_limits(limits=1, user_api="blas")
            use_threads(threads)
        try:
            if shape != (1, 1):
                tt.set_fabric_config(tt.FabricConfig.FABRIC_1D)
            options: dict[str, Any] = {"trace_region_size": _TRACE_REGION_BYTES} if trace else {}
            if device_ids and not emulated:
                options["physical_device_ids"] = list(device_ids)
            handle = tt.open_mesh_device(tt.MeshShape(*shape), **options)
        except RuntimeError as error:
            with suppress(RuntimeError):  # Keep the first error.
                _disable_fabric(tt, shape)
            if emulated:
                raise Refused(
                    f"device_config.mesh_shape: {list(shape)} can't be emulated: {error}"
                ) from error
            reason = explain_open_failure(error)
            raise Failed(f"device_config.mesh_shape: {list(shape)} can't be opened: {reason}") from error
        _open_mesh = Mesh(tt, handle, shape, axes, getattr(tt, dtype))
        return _open_mesh


def detect_mesh_shape(backend: str) -> tuple[int, int]:
    """Return rows and columns of all devices of this host.

    The descriptor in TT_MESH_GRAPH_DESC_PATH decides if it is set, else ttnn does. The emulator has one chip.

    Raises:
        Refused: the backend or the descriptor can't be used.
        Failed: ttnn finds no devices.
    """
    configured = read_configured_shape(os.environ)
    tt = load_device_module(backend, configured or (1, 1))
    if str(tt.__name__) == "mesh.emulator":
        return (1, 1)
    if configured is not None:
        return configured
    try:
        rows, columns = tt._ttnn.multi_device.SystemMeshDescriptor().shape()
    except RuntimeError as error:
        raise Failed(f"the devices of this host can't be found: {explain_open_failure(error)}") from error
    return int(rows), int(columns)


def is_mesh_of_host(mesh_shape: tuple[int, int], backend: str) -> bool:
    """Return whether this host is known to have a mesh of (rows, columns): all are emulated.

    Chips are known by the descriptor in TT_MESH_GRAPH_DESC_PATH. To ask ttnn would make it read a descriptor, and no
    other one could follow in this process.
    """
    if drives_chips(backend, has_chips=has_device()):
        return read_configured_shape(os.environ) == mesh_shape
    return mesh_shape[0] * mesh_shape[1] <= MAX_CHIPS


def _disable_fabric(tt: Any, shape: tuple[int, int]) -> None:
    # A fabric that stays enabled would keep the next mesh of this host from opening.
    if shape != (1, 1):
        tt.set_fabric_config(tt.FabricConfig.DISABLED)
