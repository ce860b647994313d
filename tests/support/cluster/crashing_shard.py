"""An aggregator or shard whose sums have a defect that the job "poisoned" brings out always, and "unlucky" once.

Run it like the command: `python -m tests.support.cluster.crashing_shard aggregator --shard ...`.
"""

from __future__ import annotations

import sys
from typing import Any

from cli.main import main
from plane.plane_tensors import PlaneTensors
from plane.sums import StoredSums
from protos import plane_pb2 as pb
from protos.tensors_pb2 import GRADIENT
from services.config.job import JobConfig
from services.tensors.chunk_messages import TensorChunk

_jobs: list[str] = []
"""Names of the jobs whose tensors this process had, the newest last."""
_raised: set[str] = set()
_init, _keep_piece = PlaneTensors.__init__, StoredSums.keep_piece


def init(self: PlaneTensors, order: pb.OpenPart, *arguments: Any, **named: Any) -> None:
    """Note the job's name."""
    _jobs.append(JobConfig.from_json(order.spec_json).name)
    _init(self, order, *arguments, **named)


def keep_piece(self: StoredSums, piece: TensorChunk) -> None:
    """Keep a piece, or fail."""
    job = _jobs[-1] if _jobs else ""
    if piece.header.kind == GRADIENT and (job == "poisoned" or (job == "unlucky" and job not in _raised)):
        _raised.add(job)
        raise IndexError("list index out of range")
    _keep_piece(self, piece)


if __name__ == "__main__":
    for owner, name, replacement in (
        (PlaneTensors, "__init__", init),
        (StoredSums, "keep_piece", keep_piece),
    ):
        setattr(owner, name, replacement)
    sys.exit(main())
