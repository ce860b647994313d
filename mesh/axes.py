"""The assignment of parallel strategies to the axes of the mesh."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Axes:
    """Mesh axis of each parallel strategy: 0 is rows, 1 is columns. A job's configuration decides which are set.

    Attributes:
        data: axis over which a batch is split; None without data parallelism.
        tensor: axis over which single layers are split; None without tensor parallelism.
        shard_parameters: whether parameters are sharded over the data axis and gathered when used (FSDP).
    """

    data: int | None = None
    tensor: int | None = None
    shard_parameters: bool = False

    def __post_init__(self) -> None:
        chosen = [axis for axis in (self.data, self.tensor) if axis is not None]
        if any(axis not in (0, 1) for axis in chosen) or len(set(chosen)) < len(chosen):
            raise ValueError(f"{self}: expected axes 0 and 1, each with at most one strategy")
        if self.shard_parameters and self.data is None:
            raise ValueError(f"{self}: shard_parameters needs a data axis to shard over; set data")
