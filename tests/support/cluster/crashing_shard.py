"""An aggregator or shard whose sums have a defect that the job "poisoned" brings out always, and "unlucky" once.

Run it like the command: `python -m tests.support.cluster.crashing_shard aggregator --shard ...`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from aggregator.core.events import SumEffect
from aggregator.data_plane.reduction import StoredSums
from aggregator.shards.server.kernel_state import ShardTensors
from cli.main import main
from protos import shards_pb2 as pb
from protos.tensors_pb2 import GRADIENT
from services.config.job import JobConfig
from services.tensors.chunk_messages import TensorChunk

_jobs: list[str] = []
"""Names of the jobs whose tensors this process had, the newest last."""
_raised: set[str] = set()
_init, _carry_out = ShardTensors.__init__, StoredSums.carry_out


def init(self: ShardTensors, order: pb.OpenPart, *arguments: Any, **named: Any) -> None:
    """Note the job's name."""
    _jobs.append(JobConfig.from_json(order.spec_json).name)
    _init(self, order, *arguments, **named)


def carry_out(self: StoredSums, effects: Sequence[SumEffect], chunk: TensorChunk | None) -> None:
    """Carry out effects, or fail."""
    job = _jobs[-1] if _jobs else ""
    gradient = chunk is not None and chunk.header.kind == GRADIENT
    if gradient and (job == "poisoned" or (job == "unlucky" and job not in _raised)):
        _raised.add(job)
        raise IndexError("list index out of range")
    _carry_out(self, effects, chunk)


if __name__ == "__main__":
    for owner, name, replacement in ((ShardTensors, "__init__", init), (StoredSums, "carry_out", carry_out)):
        setattr(owner, name, replacement)
    sys.exit(main())
