"""The training step of a pipeline whose ranges are all in this process, run by one thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mesh.device import Mesh
from mesh.exact_transfer import ExactArray
from mesh.fingerprint import compute_fingerprint
from services.config.job import JobConfig
from services.config.pipeline import PipelineConfig
from services.pipeline.schedule import Pass, Schedule
from training.job_data import JobData
from training.models.build import build_model
from training.models.checkpoint_files import describe_model
from training.models.initialise import build_layout
from training.range_step import FinishedPass, Float32Array, PassInFlight, RangeStep
from training.step import PassPhase, unobserved

Compute: TypeAlias = Callable[[Float32Array, Callable[[int], None]], FinishedPass]
"""Function that writes a range's gradient of a micro-batch to an array, from its end to its start.

It calls back with the index from which on the array is complete; the last call is with 0."""

AddLeaf: TypeAlias = Callable[[int, int, Compute], FinishedPass]
"""Function that takes the index of a range, that of a micro-batch, and what computes the gradient of both.

It gives `Compute` an array and returns what that returns. A range's micro-batches come in index order."""


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
        around_phase: Callable[[PassPhase], AbstractContextManager[None]] = unobserved,
        on_non_finite: Callable[[int, str], None] | None = None,
    ) -> None:
        self._mesh = meshes[0]
        self._pipeline = pipeline
        self._around_phase = around_phase
        self._on_non_finite = on_non_finite
        self._data = data = JobData.open(config, data_dir)
        # The whole model only names parameters here: they get no values.
        self._model = build_model(config.model, data.vocabulary, meshes[0], allowed_models)
        self.layout = build_layout(self._model, decay_all=config.optimizer.weight_decay_on == "all")
        self._ranges = tuple(
            RangeStep(
                config,
                meshes[pipeline.split.stage_of(index)],
                data,
                self.layout,
                blocks,
                data_dir,
                allowed_models,
            )
            for index, blocks in enumerate(pipeline.split.ranges)
        )
        self.ranges = tuple(
            slice(each.weights.offset, each.weights.offset + each.weights.elements) for each in self._ranges
        )
        self.evaluation_batches = data.evaluation_batches
        self.tokens_per_micro_batch = data.dataset.rows_per_micro_batch
        self.vocabulary = data.vocabulary

    def initial_weights(self) -> Float32Array:
        """Return the weights that training starts from, flat in layout order; see `TrainingStep`."""
        return np.concatenate([each.initial_weights() for each in self._ranges])

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Let passes wait for newer weights, parameter by parameter; see `TrainingStep`."""
        for each in self._ranges:
            each.weights.expect(fetch)

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh of each range that needs it; see `TrainingStep`."""
        for each in self._ranges:
            if entry_index in each.weights.loaded:
                each.weights.load(entry_index, values)

    def micro_batches(self, step: int, first: int, count: int, add_leaf: AddLeaf) -> list[float]:
        """Compute the gradients of a lease's micro-batches in the order of the schedule.

        Args:
            step: step of the job.
            first: index of the first micro-batch.
            count: number of micro-batches.
            add_leaf: takes the gradients, range by range. What it raises ends the passes.

        Returns:
            The mean loss of each micro-batch, in index order.
        """
        pipeline = self._pipeline
        schedule = Schedule(pipeline.schedule, pipeline.stages, count, pipeline.ranges_per_stage)
        passes = _Passes(step, first, schedule, self._ranges, add_leaf)
        try:
            for one in schedule.merged_passes():
                phase = PassPhase.BACKWARD_PASS if one.is_backward else PassPhase.FORWARD_PASS
                with self._around_phase(phase):
                    passes.run(one)
                if one.is_backward and one.range_index == 0:
                    name = passes.non_finite.pop(one.micro_batch, "")
                    if name and self._on_non_finite is not None:
                        self._on_non_finite(first + one.micro_batch, name)
        finally:
            passes.clear()
        return passes.losses

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
        *before, last = self._ranges
        activation: ExactArray | None = None
        for each in before:
            activation = each.pass_evaluation(index, activation)
        return last.evaluate(index, activation)

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the model, by name; see `TrainingStep`."""
        return describe_model(self._model, self._data.tokenizer)

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Free the weights on the meshes."""
        for each in self._ranges:
            each.weights.close()


@dataclass
class _Passes:
    """The passes of a lease that are under way.

    Attributes:
        step: step of the job.
        first: index of the lease's first micro-batch.
        schedule: the schedule.
        ranges: the ranges.
        add_leaf: see `AddLeaf`.
        losses: losses of the micro-batches that the last range has ended, in index order.
        non_finite: first parameter with a gradient that is not finite, by micro-batch.
    """

    step: int
    first: int
    schedule: Schedule
    ranges: Sequence[RangeStep]
    add_leaf: AddLeaf
    losses: list[float] = field(default_factory=list)
    non_finite: dict[int, str] = field(default_factory=dict)
    _in_flight: dict[Pass, PassInFlight] = field(default_factory=dict)  # by the forward pass
    _received: dict[Pass, ExactArray] = field(default_factory=dict)  # by the pass that takes it
    _tied: dict[int, ExactArray] = field(default_factory=dict)  # by micro-batch

    def run(self, one: Pass) -> None:
        """Run a pass and keep its result for the next range."""
        result = self._backward(one) if one.is_backward else self._forward(one)
        successor = self.schedule.successor(one)
        if successor is not None:
            assert result is not None
            self._received[successor] = result

    def clear(self) -> None:
        """Free what passes under way keep on the meshes."""
        for each in self._in_flight.values():
            each.tape.clear()

    def _forward(self, one: Pass) -> ExactArray | None:
        self._in_flight[one], activation = self.ranges[one.range_index].forward(
            self.step, self.first + one.micro_batch, self._received.pop(one, None)
        )
        return activation

    def _backward(self, one: Pass) -> ExactArray | None:
        index, each, forward = one.micro_batch, self.ranges[one.range_index], one._replace(is_backward=False)
        in_flight = self._in_flight[forward]
        gradient = self._received.pop(one, None)
        tied = self._tied.pop(index, None) if one.range_index == 0 else None

        def compute(out: Float32Array, ready: Callable[[int], None]) -> FinishedPass:
            return each.backward(in_flight, gradient, tied, out, ready)

        finished = self.add_leaf(one.range_index, self.first + index, compute)
        del self._in_flight[forward]
        if finished.loss is not None:
            self.losses.append(finished.loss)
        if finished.tied is not None:
            self._tied[index] = finished.tied
        if finished.non_finite:
            self.non_finite.setdefault(index, finished.non_finite)
        return finished.gradient
