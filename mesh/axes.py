"""Which axis of the mesh carries which kind of parallelism."""

from __future__ import annotations

from dataclasses import dataclass

from services.errors import Refused


@dataclass(frozen=True)
class Axes:
    """Mesh axes (0 rows, 1 cols) by strategy, None where it isn't used, and the number of chips along each."""

    data: int | None
    tensor: int | None
    data_size: int
    tensor_size: int


def parallel_axes(mesh_shape: tuple[int, int], *, enable_ddp: bool, enable_tp: bool = False) -> Axes:
    """The axes of a mesh of `mesh_shape` (rows, cols).

    Dimensions of size 1 are dropped; data parallel takes the first that remains. Raises Refused if the number of
    enabled strategies isn't the number of dimensions that remain, and for tensor parallel, which isn't built yet.
    """
    shown = list(mesh_shape)
    if len(mesh_shape) != 2 or any(size < 1 for size in mesh_shape):
        raise Refused(f"device_config.mesh_shape: {shown}, expected [rows, cols], both 1 or more")
    if enable_tp:
        raise Refused(
            "device_config.enable_tp: true, but tensor parallel is not built yet; use enable_ddp with a mesh of one "
            "dimension, such as [1, 8]"
        )
    remaining = [axis for axis, size in enumerate(mesh_shape) if size > 1]
    if enable_ddp:
        if not remaining:
            raise Refused(
                f"device_config.enable_ddp: true with mesh_shape {shown}, which has one chip to share the data; "
                "set enable_ddp: false, or a mesh_shape such as [1, 8]"
            )
        if len(remaining) > 1:
            raise Refused(
                f"device_config.mesh_shape: {shown} has two dimensions above 1, but only enable_ddp is on; "
                f"use [1, {mesh_shape[0] * mesh_shape[1]}]"
            )
        return Axes(data=remaining[0], tensor=None, data_size=mesh_shape[remaining[0]], tensor_size=1)
    if remaining:
        raise Refused(
            f"device_config.mesh_shape: {shown} has several chips, but no strategy to use them; "
            "set device_config.enable_ddp: true, or mesh_shape: [1, 1]"
        )
    return Axes(data=None, tensor=None, data_size=1, tensor_size=1)
