"""What replacements of `training.step.TrainingStep` share that load no weights onto a mesh and train nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.fingerprint import compute_fingerprint
from services.tensors.layout import Layout

Float32Array = npt.NDArray[np.float32]


class StepWithoutMesh:
    """Weights in an array of this process, and answers without content.

    Args:
        layout: layout of the weights.
        mesh: mesh whose fingerprint it has.
    """

    def __init__(self, layout: Layout, mesh: Mesh) -> None:
        self.layout = layout
        self._mesh = mesh
        self._fetch: Callable[[int], None] | None = None
        self._weights: Float32Array = np.zeros(layout.elements, np.float32)

    def initial_weights(self) -> Float32Array:
        """Return zeros."""
        return np.zeros(self.layout.elements, np.float32)

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Note that newer weights are on their way."""
        self._fetch = fetch

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Copy the values of one parameter, as a mesh would."""
        entry = self.layout.entries[entry_index]
        self._weights[entry.offset : entry.stop] = values

    def evaluate(self, index: int) -> tuple[float, int]:
        """Return a loss of 0 for one token."""
        del index
        return 0.0, 1

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return an empty model config."""
        return {"config.json": b"{}\n"}

    def fingerprint(self) -> dict[str, str]:
        """Return the emulator's fingerprint."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Do nothing: the mesh has no tensors."""
