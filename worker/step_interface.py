"""The interfaces of what is built of a job on a mesh, and of its factory, as the device thread uses them.

`training.pipeline.build` makes the steps that ship. Tests and benchmarks give a worker steps of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from mesh.device import Mesh
from services.config.job import JobConfig
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from training.step import PassObserver


class BuiltModel(Protocol):
    """Model and data of a job on a mesh, or some stages of them; `TrainingStep` documents each member."""

    @property
    def layout(self) -> Layout:
        """Layout of the model's parameters."""

    @property
    def evaluation_batches(self) -> int:
        """Number of held-out batches."""

    @property
    def tokens_per_micro_batch(self) -> int:
        """Tokens (samples, for a regression) in one micro-batch."""

    @property
    def vocabulary(self) -> int:
        """Number of tokens that the model knows; 0 for a model without tokens."""

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Call `fetch` with a parameter's index before a pass uses it, until it is loaded."""

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh."""

    def initial_weights(self) -> Float32Array:
        """Return the weights that training starts from, flat in layout order."""

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the model."""

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""

    def close(self) -> None:
        """Free the weights on the mesh."""


class Step(BuiltModel, Protocol):
    """Model and data of a job, whole; `TrainingStep` documents each member."""

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Write the gradient of one micro-batch to `out` and return its mean loss."""

    def evaluate(self, index: int) -> tuple[float, int]:
        """Return the sum of the losses of one held-out batch, and its number of rows."""


class StepFactory(Protocol):
    """Factory of a job's step, for example a class whose constructor takes these arguments."""

    def __call__(
        self,
        config: JobConfig,
        mesh: Mesh,
        data_dir: Path | None,
        allowed_models: Collection[str],
        *,
        around_phase: PassObserver,
        on_non_finite: Callable[[int, str], None],
    ) -> Step:
        """Return the step.

        Args:
            config: the job's config.
            mesh: the mesh opened for the job; the caller closes it.
            data_dir: folder of this host that is searched for data files missing at the job's path.
            allowed_models: modules and factories of users' own models that jobs may name.
            around_phase: gives a context manager that each forward and backward pass runs in.
            on_non_finite: callback, called with a micro-batch's index and a parameter's name, if that gradient is not
                finite.
        """
