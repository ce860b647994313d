"""The interfaces of what is built of a job on a mesh, and of its factory, as the compute process uses them.

`training.step.TrainingStep` is the step that ships. Tests and benchmarks give a worker the name of another factory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol

from mesh.device import Mesh
from services.config.job import JobConfig
from services.pipeline.exchange import AddLeaf, ArraySizes, PassExchange
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from training.pipeline.passes import PassObserver


class Step(Protocol):
    """Model and data of a job on a mesh, or some stages of them; `TrainingStep` documents each member."""

    @property
    def layout(self) -> Layout:
        """Layout of the model's parameters."""

    @property
    def ranges(self) -> Mapping[int, slice]:
        """The part of the layout that each range has, by the index of the range, in order."""

    @property
    def all_ranges(self) -> int:
        """Number of ranges of the whole model."""

    @property
    def loaded(self) -> tuple[int, ...]:
        """Indices of the layout's entries that are loaded, in order."""

    @property
    def array_sizes(self) -> ArraySizes:
        """Largest arrays that are exchanged with other stages."""

    @property
    def activation_bytes(self) -> Mapping[int, int]:
        """Memory that forward passes kept on a chip in the newest lease, by stage; empty without stages."""

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

    def micro_batches(
        self, step: int, first: int, count: int, add_leaf: AddLeaf, exchange: PassExchange
    ) -> list[float]:
        """Give `add_leaf` the gradients of micro-batches, range by range, and return the mean losses.

        A step with one range is asked for one micro-batch at a time.
        """

    def evaluate(self, index: int, exchange: PassExchange) -> tuple[float, int] | None:
        """Return the sum of the losses of one held-out batch, and its number of rows; None without the last range."""

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the model."""

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""

    def close(self) -> None:
        """Free the weights on the mesh."""


class StepFactory(Protocol):
    """Factory of a job's step, for example a class whose constructor takes these arguments."""

    def __call__(
        self,
        config: JobConfig,
        mesh: Mesh | Mapping[int, Mesh],
        data_dir: Path | None,
        allowed_models: Collection[str],
        *,
        around_phase: PassObserver,
        on_non_finite: Callable[[int, str], None],
    ) -> Step:
        """Return the step.

        Args:
            config: the job's config.
            mesh: the mesh opened for the job, or the mesh of each stage to build, by stage; the caller closes it.
            data_dir: folder of this host that is searched for data files missing at the job's path.
            allowed_models: modules and factories of users' own models that jobs may name.
            around_phase: gives a context manager that each forward and backward pass runs in.
            on_non_finite: callback, called with a micro-batch's index and a parameter's name, if that gradient is not
                finite.
        """
