"""What workers' heartbeats say of their devices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from protos import cluster_pb2 as pb

STALLED_TIMES = 5
"""Multiple of the expected duration after which work has stalled, unless the `stall` timeout is longer."""

TASKS: Mapping[int, str] = {
    pb.OPEN_MESH: "opens the mesh",
    pb.BUILD_JOB: "builds the job",
    pb.CLOSE_MESH: "closes the mesh",
    pb.CHECK_THE_MESH: "checks the mesh",
    pb.LOAD_WEIGHTS: "loads weights",
    pb.MAKE_WEIGHTS: "makes the initial weights",
    pb.DESCRIBE_MODEL: "describes the model for checkpoints",
    pb.COMPUTE_GRADIENTS: "computes gradients",
    pb.REPEAT_GRADIENTS: "computes gradients of another worker again",
    pb.EVALUATE_BATCHES: "evaluates",
}
"""Tasks of a device thread, for people."""


@dataclass(frozen=True)
class Device:
    """What a worker's device thread does.

    Attributes:
        task: one of `TASKS`, or an unknown one; 0 for nothing.
        seconds: time since it last got on.
        waits_for: what it waits for from another process, for people; empty if it computes itself.
    """

    task: int
    seconds: float
    waits_for: str

    @classmethod
    def read(cls, heartbeat: pb.Heartbeat) -> Device | None:
        """Return what a worker says of its device; None if it says nothing, or an impossible time."""
        report = heartbeat.device
        known = heartbeat.HasField("device") and 0.0 <= report.seconds < math.inf
        return cls(report.task, report.seconds, report.waits_for) if known else None

    @property
    def is_busy(self) -> bool:
        """Whether it computes, and waits for no other process."""
        return self.task != pb.DEVICE_TASK_UNSPECIFIED and not self.waits_for

    def __str__(self) -> str:
        task = TASKS.get(self.task, "is busy")
        waits = f", waits for {self.waits_for}" if self.waits_for else ""
        return f"its device {task}{waits}, and has not got on for {self.seconds:.0f} s"
