"""A worker whose gradients count: `tiermesh worker` as it is, but for the training step on its mesh.

Micro-batch number n of the job (steps and their micro-batches counted through, N in all) has the gradient that is zero
but at the elements n, n + N, n + 2 N, ...: there it is 1, 2, 3, ... So with SGD at a learning rate of 1, from zeros, an
element of the final weights says whether its micro-batch was counted once; all numbers are exact in float32, since the
step's M micro-batches are a power of two. And each micro-batch is refused on weights that aren't those of its step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cli.daemon_commands import make_worker_command
from cli.main import main
from mesh.device import Mesh
from mesh.fingerprint import compute_fingerprint
from services.config.job import JobConfig
from services.runtime import process
from services.tensors.layout import CHUNK_ELEMENTS, Layout

Float32Array = npt.NDArray[np.float32]

TENSORS = 5
TENSOR_ELEMENTS = CHUNK_ELEMENTS // 2 + 1
"""So the layout has three chunks, and tensors that lie in two."""


@lru_cache(maxsize=1)  # all micro-batches of a step ask for the same
def tallied(steps: int, of_steps: int, micro_batches: int) -> Float32Array:
    """The weights after so many steps, to be read: what counts each of their micro-batches once."""
    weights = np.zeros(TENSORS * TENSOR_ELEMENTS, np.float32)
    for number in range(steps * micro_batches):
        own = weights[number :: of_steps * micro_batches]
        own[:] = np.arange(1, len(own) + 1) / -micro_batches
    weights.setflags(write=False)
    return weights


class TallyStep:
    """Stands in for `training.step.TrainingStep`; see there."""

    evaluation_batches = 1
    tokens_per_micro_batch = 1

    def __init__(
        self,
        config: JobConfig,
        mesh: Mesh,
        data_dir: Path | None,
        allowed_models: Collection[str],
        **callbacks: Any,
    ) -> None:
        del data_dir, allowed_models, callbacks
        self._steps, self._micro_batches = config.steps, config.micro_batches
        self._mesh = mesh
        self.layout = Layout.build(
            (f"t{index}", (TENSOR_ELEMENTS,), False, f"t{index}", False) for index in range(TENSORS)
        )
        self._weights: Float32Array = np.zeros(self.layout.elements, np.float32)
        self._fetch: Callable[[int], None] | None = None

    def initial_weights(self) -> Float32Array:
        """Zeros."""
        return np.zeros(self.layout.elements, np.float32)

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Newer weights are on their way; a micro-batch waits for all of them."""
        self._fetch = fetch

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Take one tensor."""
        entry = self.layout.entries[entry_index]
        self._weights[entry.offset : entry.stop] = values

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Count the micro-batch."""
        if self._fetch is not None:
            self._fetch(len(self.layout.entries) - 1)
        self.hold_weights(step)
        number, numbers = step * self._micro_batches + index, self._steps * self._micro_batches
        out.fill(0.0)
        own = out[number::numbers]
        own[:] = np.arange(1, len(own) + 1)
        ready(0)
        return float(number)

    def hold_weights(self, step: int) -> None:
        """Raise ValueError for weights that are not to be computed on."""
        if not np.array_equal(self._weights, tallied(step, self._steps, self._micro_batches)):
            raise ValueError(
                f"step {step} is to be computed on weights that don't count each step before it once"
            )

    def evaluate(self, index: int) -> tuple[float, int]:
        """No loss."""
        del index
        return 0.0, 1

    def checkpoint_files(self) -> dict[str, bytes]:
        """A config that says nothing."""
        return {"config.json": b"{}\n"}

    def fingerprint(self) -> dict[str, str]:
        """The emulator's."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Nothing lies on the mesh."""


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(main(worker_command=make_worker_command(TallyStep)))
