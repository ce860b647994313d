"""What replacements of `training.step.TrainingStep` share that load no weights onto a mesh and train nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.fingerprint import compute_fingerprint
from services.pipeline.exchange import AddLeaf, ArraySizes, FinishedPass, PassExchange
from services.tensors.layout import Layout

Float32Array = npt.NDArray[np.float32]


class StepWithoutMesh(ABC):
    """Weights in an array of this process, and answers without content.

    Args:
        layout: layout of the weights.
        mesh: mesh whose fingerprint it has.
    """

    all_ranges = 1
    tokens_per_micro_batch = 1
    array_sizes = ArraySizes(np.dtype(np.float32), 0, 0)

    def __init__(self, layout: Layout, mesh: Mesh) -> None:
        self.layout = layout
        self.ranges = {0: slice(0, layout.elements)}
        self.loaded = tuple(range(len(layout.entries)))
        self.activation_bytes: dict[int, int] = {}
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

    @abstractmethod
    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Write the gradient of a micro-batch to an array, and return its loss."""

    def micro_batches(
        self, step: int, first: int, count: int, add_leaf: AddLeaf, exchange: PassExchange
    ) -> list[float]:
        """Give `add_leaf` the gradients of `micro_batch`."""
        del exchange
        losses: list[float] = []
        for index in range(first, first + count):

            def compute(out: Float32Array, ready: Callable[[int], None], index: int = index) -> FinishedPass:
                losses.append(self.micro_batch(step, index, out, ready))
                return FinishedPass(None, None, losses[-1], self.tokens_per_micro_batch, "")

            add_leaf(0, index, compute)
        return losses

    def evaluate(self, index: int, exchange: PassExchange) -> tuple[float, int]:
        """Return a loss of 0 for one token."""
        del index, exchange
        return 0.0, 1

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return an empty model config."""
        return {"config.json": b"{}\n"}

    def fingerprint(self) -> dict[str, str]:
        """Return the emulator's fingerprint."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Free the weights: the mesh has no tensors."""
        self._weights = np.zeros(0, np.float32)
