"""Which axis of the mesh carries which kind of parallelism."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Axes:
    """Mesh axes (0 rows, 1 columns) by strategy; which flags of a job give which axes is settled in its config.

    Attributes:
        data: the axis over which a batch is split, None for none.
        tensor: the axis over which single layers are split, None for none.
        shard_parameters: whether parameters are sharded over the data axis, and gathered when used (FSDP).
    """

    data: int | None = None
    tensor: int | None = None
    shard_parameters: bool = False

    def __post_init__(self) -> None:
        chosen = [axis for axis in (self.data, self.tensor) if axis is not None]
        if any(axis not in (0, 1) for axis in chosen) or len(set(chosen)) < len(chosen):
            raise ValueError(f"{self}: a mesh has axes 0 and 1, and one strategy each")
        if self.shard_parameters and self.data is None:
            raise ValueError(f"{self}: parameters are sharded over the data axis; there is none")
