"""Capture of command traces: refused, as in ttnn under slow dispatch, where the host issues each op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from mesh.emulator.device import MeshDevice


@dataclass(frozen=True)
class MeshTraceId:
    """Id of a captured trace."""

    number: int


def begin_trace_capture(mesh_device: MeshDevice, *, cq_id: int | None = None) -> MeshTraceId:
    """Raise RuntimeError: traces need fast dispatch."""
    _refuse("begin_trace_capture", mesh_device)


def end_trace_capture(mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None) -> None:
    """Raise RuntimeError: traces need fast dispatch."""
    _refuse("end_trace_capture", mesh_device)


def execute_trace(
    mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None, blocking: bool = True
) -> None:
    """Raise RuntimeError: traces need fast dispatch."""
    _refuse("execute_trace", mesh_device)


def release_trace(mesh_device: MeshDevice, trace_id: MeshTraceId) -> None:
    """Do nothing: there are no traces."""
    mesh_device.check_open("release_trace")


def _refuse(op: str, mesh_device: MeshDevice) -> NoReturn:
    mesh_device.check_open(op)
    raise RuntimeError(f"{op}: Not supported for slow dispatch")
