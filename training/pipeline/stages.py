"""The stages of a pipeline that this process has: their ranges, and their part of each lease's passes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from mesh.device import Mesh
from mesh.exact_transfer import ExactArray
from mesh.fingerprint import compute_fingerprint
from services.config.job import JobConfig
from services.config.job_inputs import reads_data
from services.config.pipeline import PipelineConfig
from services.pipeline.schedule import Pass, Schedule
from services.pipeline.split import StageRun
from training.job_data import JobData, UnreadData
from training.models.build import build_model
from training.models.checkpoint_files import describe_model
from training.models.initialise import build_layout
from training.pipeline.activation_memory import ActivationMemory
from training.pipeline.exchange import ArraySizes, PassExchange
from training.range_step import FinishedPass, Float32Array, PassInFlight, RangeStep
from training.step import PassObserver, PassPhase, unobserved

Compute: TypeAlias = Callable[[Float32Array, Callable[[int], None]], FinishedPass]
"""Function that writes a range's gradient of a micro-batch to an array, from its end to its start.

It calls back with the index from which on the array is complete; the last call is with 0."""

AddLeaf: TypeAlias = Callable[[int, int, Compute], FinishedPass]
"""Function that takes the index of a range, that of a micro-batch, and what computes the gradient of both.

It gives `Compute` an array and returns what that returns. A range's micro-batches come in index order."""


class PipelineStages:
    """Some stages of a job's pipeline, run by one thread. Their neighbours are wherever the exchange leads.

    Each micro-batch has the same bits as in a `TrainingStep` of the whole model on a mesh like a stage's. Nothing of
    the other stages is allocated.

    Args:
        config: config of the job.
        pipeline: the pipeline of the job.
        meshes: mesh of each of these stages, by stage, all of one shape; stages may share one. The caller closes them.
        data_dir: folder of this host that is searched for corpus, tokenizer and checkpoint missing at the job's path.
            Stages between the first and the last one need neither corpus nor tokenizer.
        allowed_models: modules and factories of users' own models that jobs may name, see `build_model`.
        around_phase: gives a context manager that each range's forward and backward pass of a micro-batch runs in.
        on_non_finite: callback, called for a micro-batch whose gradient has a NaN or an infinity in these stages. Its
            arguments are the index and the first such parameter in the order of the backward pass.

    Attributes:
        layout: layout of the whole model's parameters.
        ranges: the part of the layout that each range of these stages has, by the index of the range, in order.
        all_ranges: number of ranges of the whole pipeline.
        evaluation_batches: number of held-out batches that the job evaluates; 0 if neither these stages nor the
            submitter could count them.
        tokens_per_micro_batch: tokens in one micro-batch.
        vocabulary: number of tokens.
        activation_bytes: most memory of one chip that forward passes kept for their backward passes in the newest
            lease, for each mesh, by the first of its stages; empty before the first lease.

    Raises:
        Refused: data is missing or unusable, sizes are impossible, or the model has no blocks.
    """

    def __init__(
        self,
        config: JobConfig,
        pipeline: PipelineConfig,
        meshes: Mapping[int, Mesh],
        data_dir: Path | None = None,
        allowed_models: Collection[str] = (),
        *,
        around_phase: PassObserver = unobserved,
        on_non_finite: Callable[[int, str], None] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._meshes = meshes
        self._around_phase = around_phase
        self._on_non_finite = on_non_finite
        run = StageRun(min(meshes), len(meshes))
        self._data = JobData.open(config, data_dir) if reads_data(config, run) else None
        data = self._data or UnreadData.of_job(config)
        # The whole model only names parameters here: they get no values.
        self._mesh = next(iter(meshes.values()))
        self._model = build_model(config.model, data.vocabulary, self._mesh, allowed_models)
        self.layout = build_layout(self._model, decay_all=config.optimizer.weight_decay_on == "all")
        self._ranges = {
            index: RangeStep(
                config,
                meshes[pipeline.split.stage_of(index)],
                data,
                self.layout,
                blocks,
                data_dir,
                allowed_models,
            )
            for index, blocks in enumerate(pipeline.split.ranges)
            if pipeline.split.stage_of(index) in meshes
        }
        self.ranges = {
            index: slice(each.weights.offset, each.weights.offset + each.weights.elements)
            for index, each in self._ranges.items()
        }
        self.all_ranges = len(pipeline.split.ranges)
        self.evaluation_batches = (
            self._data.evaluation_batches if self._data else config.evaluation_batches or 0
        )
        self.tokens_per_micro_batch = data.rows_per_micro_batch
        self.vocabulary = data.vocabulary
        self.activation_bytes: dict[int, int] = {}

    @property
    def array_sizes(self) -> ArraySizes:
        """Largest arrays that these ranges exchange with others."""
        sizes = [each.array_sizes for each in self._ranges.values()]
        return replace(sizes[0], tied_elements=max(each.tied_elements for each in sizes))

    @property
    def elements(self) -> int:
        """Number of elements of the parameters of these stages."""
        return sum(each.weights.elements for each in self._ranges.values())

    @property
    def loaded(self) -> tuple[int, ...]:
        """Indices of the layout's entries that these stages load, in order: their own and those of tied tables."""
        return tuple(sorted({index for each in self._ranges.values() for index in each.weights.loaded}))

    def initial_weights(self) -> Float32Array:
        """Return the ranges' parts of the weights that training starts from, flat, one after another.

        See `TrainingStep`.
        """
        weights, start = np.empty(self.elements, np.float32), 0
        for each in self._ranges.values():
            stop = start + each.weights.elements
            each.initial_weights(weights[start:stop])
            start = stop
        return weights

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Let passes wait for newer weights, parameter by parameter; see `TrainingStep`."""
        for each in self._ranges.values():
            each.weights.expect(fetch)

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh of each range that needs it; others are ignored. See `TrainingStep`."""
        for each in self._ranges.values():
            if entry_index in each.weights.loaded:
                each.weights.load(entry_index, values)

    def micro_batches(
        self, step: int, first: int, count: int, add_leaf: AddLeaf, exchange: PassExchange
    ) -> list[float]:
        """Compute the gradients of a lease's micro-batches in the order of the schedule.

        Args:
            step: step of the job.
            first: index of the first micro-batch.
            count: number of micro-batches.
            add_leaf: takes the gradients, range by range. What it raises ends the passes.
            exchange: carries activations and gradients between ranges.

        Returns:
            The mean loss of each micro-batch, in index order; empty without the last range.
        """
        schedule = self._pipeline.make_schedule(count, worker_stages=len(self._meshes))
        passes = _Passes(step, first, schedule, self._ranges, add_leaf, exchange, self._around_phase)
        lowest, memory = min(self._ranges), ActivationMemory(self._meshes)
        try:
            for one in self._order(schedule):
                passes.run(one)
                if not one.is_backward:
                    memory.sample(one.range_index % schedule.stages)
                if one.is_backward and one.range_index == lowest:
                    name = passes.non_finite.pop(one.micro_batch, "")
                    if name and self._on_non_finite is not None:
                        self._on_non_finite(first + one.micro_batch, name)
        finally:
            passes.clear()
        self.activation_bytes = memory.peak_bytes()
        return passes.losses

    def evaluate(self, indices: Iterable[int], exchange: PassExchange) -> Iterator[tuple[float, int]]:
        """Pass held-out batches through the ranges of these stages, without dropout.

        Args:
            indices: indices of the batches.
            exchange: carries activations between ranges.

        Yields:
            For each batch, the sum of the rows' losses and the number of rows; nothing without the last range.
        """
        last = len(self._pipeline.split.ranges) - 1
        for index in indices:
            for range_index, each in self._ranges.items():
                one = Pass(is_backward=False, range_index=range_index, micro_batch=index)
                activation = exchange.receive(one) if range_index else None
                if range_index == last:
                    yield each.evaluate(index, activation)
                else:
                    to = one._replace(range_index=range_index + 1)
                    exchange.send(to, each.pass_evaluation(index, activation))

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the whole model, by name; see `TrainingStep`.

        Stages that read no data don't know the tokenizer, and so leave its file out.
        """
        return describe_model(self._model, None if self._data is None else self._data.tokenizer)

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Free the weights on the meshes."""
        for each in self._ranges.values():
            each.weights.close()

    def _order(self, schedule: Schedule) -> Iterator[Pass]:
        """Yield the passes of these stages in an order that one thread can run."""
        if len(self._meshes) == 1:
            return schedule.passes(next(iter(self._meshes)))
        stages = schedule.stages
        return (one for one in schedule.merged_passes() if one.range_index % stages in self._meshes)


@dataclass
class _Passes:
    """The passes of a lease that are under way.

    Attributes:
        step: step of the job.
        first: index of the lease's first micro-batch.
        schedule: the schedule.
        ranges: the ranges of this process, by index.
        add_leaf: see `AddLeaf`.
        exchange: carries arrays between ranges.
        around_phase: gives a context manager that a pass runs in, without waits for other ranges.
        losses: losses of the micro-batches that the last range has ended, in index order.
        non_finite: first parameter with a gradient that is not finite, by micro-batch of the lease.
    """

    step: int
    first: int
    schedule: Schedule
    ranges: Mapping[int, RangeStep]
    add_leaf: AddLeaf
    exchange: PassExchange
    around_phase: PassObserver
    losses: list[float] = field(default_factory=list)
    non_finite: dict[int, str] = field(default_factory=dict)
    _in_flight: dict[Pass, PassInFlight] = field(default_factory=dict)  # by the forward pass

    def run(self, one: Pass) -> None:
        """Run a pass and send its result to the next range."""
        in_step = self._in_step(one)
        received = self.exchange.receive(in_step) if self.schedule.is_fed(one) else None
        if not one.is_backward:
            with self.around_phase(PassPhase.FORWARD_PASS, in_step):
                left = self._forward(one, received)
            self._send(one, left)
            return
        takes_tied = self.ranges[one.range_index].takes_tied_part
        tied = self.exchange.receive_tied(in_step.micro_batch) if takes_tied else None
        with self.around_phase(PassPhase.BACKWARD_PASS, in_step):
            finished = self._backward(one, received, tied)
        self._send(one, finished.gradient)
        if finished.tied is not None:  # after the gradient, which is needed sooner
            self.exchange.send_tied(in_step.micro_batch, finished.tied)

    def clear(self) -> None:
        """Free what passes under way keep on the meshes."""
        for each in self._in_flight.values():
            each.tape.clear()

    def _send(self, one: Pass, result: ExactArray | None) -> None:
        successor = self.schedule.successor(one)
        if successor is not None:
            assert result is not None
            self.exchange.send(self._in_step(successor), result)

    def _in_step(self, one: Pass) -> Pass:
        return one._replace(micro_batch=self.first + one.micro_batch)

    def _forward(self, one: Pass, activation: ExactArray | None) -> ExactArray | None:
        self._in_flight[one], left = self.ranges[one.range_index].forward(
            self.step, self.first + one.micro_batch, activation
        )
        return left

    def _backward(self, one: Pass, gradient: ExactArray | None, tied: ExactArray | None) -> FinishedPass:
        index, each, forward = one.micro_batch, self.ranges[one.range_index], one._replace(is_backward=False)
        in_flight = self._in_flight[forward]

        def compute(out: Float32Array, ready: Callable[[int], None]) -> FinishedPass:
            return each.backward(in_flight, gradient, tied, out, ready)

        finished = self.add_leaf(one.range_index, self.first + index, compute)
        del self._in_flight[forward]
        if finished.loss is not None:
            self.losses.append(finished.loss)
        if finished.non_finite:
            self.non_finite.setdefault(index, finished.non_finite)
        return finished
