"""The training step of a pipeline whose ranges are all in this process, run by one thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from mesh.device import Mesh
from services.config.job import JobConfig
from services.config.pipeline import PipelineConfig
from training.pipeline.exchange import LocalExchange
from training.pipeline.stages import AddLeaf, Compute, PipelineStages
from training.range_step import FinishedPass, Float32Array
from training.step import PassObserver, unobserved


class PipelineStep:
    """Model and data of a job, as ranges that the passes of a lease's micro-batches overlap in.

    Each micro-batch has the same bits as in a `TrainingStep` of the whole model on a mesh like a stage's.

    Args:
        config: config of the job.
        pipeline: the pipeline of the job.
        meshes: mesh of each stage, all of one shape; stages may share one. The caller closes them.
        data_dir: folder of this host that is searched for corpus, tokenizer and checkpoint missing at the job's path.
        allowed_models: modules and factories of users' own models that jobs may name, see `build_model`.
        around_phase: gives a context manager that each range's forward and backward pass of a micro-batch runs in.
        on_non_finite: callback, called for a micro-batch whose gradient has a NaN or an infinity. Its arguments are the
            index and the first such parameter in the order of the backward pass.

    Attributes:
        stages: all stages, which exchange arrays through a `LocalExchange`.
        layout: layout of the whole model's parameters.
        ranges: the part of the layout that each range has, in order and without gaps.
        evaluation_batches: number of held-out batches that the job evaluates.
        tokens_per_micro_batch: tokens in one micro-batch.
        vocabulary: number of tokens.

    Raises:
        Refused: data is missing or unusable, sizes are impossible, or the model has no blocks.
    """

    def __init__(
        self,
        config: JobConfig,
        pipeline: PipelineConfig,
        meshes: Sequence[Mesh],
        data_dir: Path | None = None,
        allowed_models: Collection[str] = (),
        *,
        around_phase: PassObserver = unobserved,
        on_non_finite: Callable[[int, str], None] | None = None,
    ) -> None:
        self.stages = stages = PipelineStages(
            config,
            pipeline,
            dict(enumerate(meshes)),
            data_dir,
            allowed_models,
            around_phase=around_phase,
            on_non_finite=on_non_finite,
        )
        self.layout = stages.layout
        self.ranges = tuple(stages.ranges.values())
        self.evaluation_batches = stages.evaluation_batches
        self.tokens_per_micro_batch = stages.tokens_per_micro_batch
        self.vocabulary = stages.vocabulary

    @property
    def activation_bytes(self) -> dict[int, int]:
        """Most memory that forward passes kept on a chip of each mesh in the newest lease; see `PipelineStages`."""
        return self.stages.activation_bytes

    def initial_weights(self) -> Float32Array:
        """Return the weights that training starts from, flat in layout order; see `TrainingStep`."""
        return self.stages.initial_weights()

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Let passes wait for newer weights, parameter by parameter; see `TrainingStep`."""
        self.stages.expect(fetch)

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh of each range that needs it; see `TrainingStep`."""
        self.stages.load(entry_index, values)

    def micro_batches(self, step: int, first: int, count: int, add_leaf: AddLeaf) -> list[float]:
        """Compute the gradients of a lease's micro-batches; see `PipelineStages`."""
        return self.stages.micro_batches(step, first, count, add_leaf, LocalExchange())

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Compute the gradient of one micro-batch and return its mean loss; see `TrainingStep`."""

        def add_leaf(range_index: int, micro_batch: int, compute: Compute) -> FinishedPass:
            del micro_batch
            own = self.ranges[range_index]
            # With one micro-batch, a range's backward pass follows that of the range after it.
            return compute(out[own], lambda offset: ready(own.start + offset))

        return self.micro_batches(step, index, 1, add_leaf)[0]

    def evaluate(self, index: int) -> tuple[float, int]:
        """Compute the losses of the `index`-th held-out batch that the job evaluates; see `TrainingStep`."""
        (result,) = self.stages.evaluate([index], LocalExchange())
        return result

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the model, by name; see `TrainingStep`."""
        return self.stages.checkpoint_files()

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""
        return self.stages.fingerprint()

    def close(self) -> None:
        """Free the weights on the meshes."""
        self.stages.close()
