"""The check of this worker's mesh by an all-reduce of known values, as a report for the aggregator."""

from __future__ import annotations

from mesh.device import detect_mesh_shape
from mesh.link_check import AxisCheck, check_axis, open_mesh_for_check
from protos.checks_pb2 import AxisReport, MeshReport
from protos.compute_pb2 import CheckMesh
from services.errors import TiermeshError, describe_internal_error
from services.instrumentation.failpoints import hit_failpoint
from services.printable import LINE_CHARACTERS, printable

MAX_WRONG = 3
"""Number of wrong devices that are named per axis; the others are counted."""


def check_mesh(order: CheckMesh) -> MeshReport:
    """Open a mesh, run an all-reduce along each axis, and close it."""
    report = MeshReport()
    try:
        shape = (order.rows, order.columns) if order.rows else detect_mesh_shape(order.backend)
        with open_mesh_for_check(shape, order.backend) as mesh:
            hit_failpoint("worker.mesh-check")
            report.rows, report.columns = mesh.shape
            report.backend, report.arch = mesh.backend, mesh.arch
            report.axes.extend(
                _report(check_axis(mesh, axis)) for axis, size in enumerate(mesh.shape) if size > 1
            )
    except TiermeshError as error:
        report.problem = printable(str(error), LINE_CHARACTERS)
    except Exception as error:  # whatever ttnn raises
        report.problem = printable(describe_internal_error(error), LINE_CHARACTERS)
    return report


def _report(check: AxisCheck) -> AxisReport:
    wrong = [printable(each, LINE_CHARACTERS) for each in check.wrong_sums[:MAX_WRONG]]
    return AxisReport(
        axis=check.axis,
        devices=check.devices,
        seconds=check.seconds,
        wrong=wrong,
        wrong_count=len(check.wrong_sums),
    )
