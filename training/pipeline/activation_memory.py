"""Memory that forward passes keep on the chips for their backward passes, measured while a lease runs."""

from __future__ import annotations

from collections.abc import Mapping

from mesh.device import Mesh
from mesh.memory import read_chip_memory


class ActivationMemory:
    """The peak of what the passes in flight of one lease keep, for each mesh.

    Args:
        meshes: mesh of each stage of this process; stages may share one.
    """

    def __init__(self, meshes: Mapping[int, Mesh]) -> None:
        self._meshes = meshes
        self._peaks: dict[Mesh, int] = {}

    def sample(self, stage: int) -> None:
        """Note what is allocated after a forward pass of a stage."""
        mesh = self._meshes[stage]
        self._peaks[mesh] = max(self._peaks.get(mesh, 0), read_chip_memory(mesh).allocated_bytes)

    def peak_bytes(self) -> dict[int, int]:
        """Return the peak of one chip of each mesh, by the first of its stages, after the last pass of the lease.

        What is still allocated then are weights and constants, some of which a job's first lease allocates.
        """
        first_stages = {mesh: stage for stage, mesh in sorted(self._meshes.items(), reverse=True)}
        return {
            stage: max(0, self._peaks.get(mesh, 0) - read_chip_memory(mesh).allocated_bytes)
            for mesh, stage in first_stages.items()
        }
