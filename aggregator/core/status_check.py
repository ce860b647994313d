"""Check of what an optimizer says that it has of a job."""

from __future__ import annotations

from protos.cluster_pb2 import OptimizerStatus
from services.errors import Refusal
from services.printable import counted
from services.protocol.plan import JobPlan


def check_status(status: OptimizerStatus, plan: JobPlan, elements: int) -> Refusal | None:
    """Return why a job can't go on with an optimizer of this status, which is not EMPTY; None if it can.

    Args:
        status: the optimizer's status.
        plan: the job's plan.
        elements: number of elements of the job's layout; 0 if it is unknown.
    """
    if status.step > plan.steps:
        return Refusal(f"the optimizer is at step {status.step}, the job has {counted(plan.steps, 'step')}")
    if not status.layout_hash:
        text = "the optimizer has a layout without a hash, expected one"
        return Refusal(f"{text}; give all hosts the same version of Tiermesh")
    refusal = plan.parameters.check(status.elements)
    if refusal is not None:
        return Refusal(f"the optimizer: {refusal}")
    if elements not in (0, status.elements):
        text = f"the optimizer has {status.elements} elements, expected {elements} as before"
        return Refusal(f"{text}; give all hosts the same version of Tiermesh")
    return None
