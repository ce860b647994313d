"""Check of what an optimizer says that it has of a job."""

from __future__ import annotations

from protos.cluster_pb2 import OptimizerStatus
from services.errors import Refusal
from services.printable import counted
from services.tensors.layout import MAX_ELEMENTS


def check_status(status: OptimizerStatus, steps: int, elements: int) -> Refusal | None:
    """Return why a job can't go on with an optimizer of this status, which is not EMPTY; None if it can.

    Args:
        status: the optimizer's status.
        steps: number of steps of the job.
        elements: number of elements of the job's layout; 0 if it is unknown.
    """
    if status.step > steps:
        return Refusal(f"the optimizer is at step {status.step}, the job has {counted(steps, 'step')}")
    if not 0 < status.elements <= MAX_ELEMENTS or not status.layout_hash:
        found = f"a layout of {status.elements} elements with hash {status.layout_hash[:12]!r}"
        text = f"the optimizer has {found}, expected 1 to {MAX_ELEMENTS} elements and a hash"
        return Refusal(f"{text}; give all hosts the same version of Tiermesh")
    if elements not in (0, status.elements):
        text = f"the optimizer has {status.elements} elements, expected {elements} as before"
        return Refusal(f"{text}; give all hosts the same version of Tiermesh")
    return None
