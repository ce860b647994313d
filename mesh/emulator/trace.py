"""Capturing the ops of a step to replay them: refused, as ttnn does where the host dispatches op by op."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from mesh.emulator.device import MeshDevice


@dataclass(frozen=True)
class MeshTraceId:
    """Names a captured trace."""

    number: int


def begin_trace_capture(mesh_device: MeshDevice, *, cq_id: int | None = None) -> MeshTraceId:
    """Raises RuntimeError."""
    _refuse("begin_trace_capture", mesh_device)


def end_trace_capture(mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None) -> None:
    """Raises RuntimeError: nothing is being captured."""
    _refuse("end_trace_capture", mesh_device)


def execute_trace(
    mesh_device: MeshDevice, trace_id: MeshTraceId, *, cq_id: int | None = None, blocking: bool = True
) -> None:
    """Raises RuntimeError."""
    _refuse("execute_trace", mesh_device)


def release_trace(mesh_device: MeshDevice, trace_id: MeshTraceId) -> None:
    """Forget a trace: there is none."""
    mesh_device.check_open("release_trace")


def _refuse(op: str, mesh_device: MeshDevice) -> NoReturn:
    mesh_device.check_open(op)
    raise RuntimeError(f"{op}: Not supported for slow dispatch")
