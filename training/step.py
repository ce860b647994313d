"""A worker's training step: everything of a job that runs on its mesh. One thread calls it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from mesh.device import Mesh
from mesh.fingerprint import compute_fingerprint
from services.config.job import JobConfig
from services.config.job_inputs import reads_data
from services.config.pipeline import PipelineConfig
from services.pipeline.exchange import AddLeaf, ArraySizes, LocalExchange, PassExchange
from services.pipeline.schedule import Pass, Schedule
from services.pipeline.split import StageRun
from training.job_data import JobData, UnreadData
from training.models.build import build_model, build_range
from training.models.checkpoint_files import describe_model
from training.models.custom import name_own_model_in_errors
from training.models.initialise import build_layout
from training.pipeline.activation_memory import ActivationMemory
from training.pipeline.passes import Passes, PassObserver, unobserved
from training.range_step import Float32Array, RangeStep

ONE_STAGE = PipelineConfig(blocks_per_stage=(1,))
"""The pipeline of a whole model: one stage with one range, whatever blocks the model has."""


class TrainingStep:
    """Model and data of a job on a mesh: the whole model, or some stages of the job's pipeline.

    A whole model is a pipeline of one stage. Each micro-batch has the same bits by stages as by a whole model on a mesh
    like a stage's. Nothing of stages that are elsewhere is allocated; the exchange leads to them.

    Args:
        config: config of the job.
        mesh: the mesh opened for the job; or, to build stages, the mesh of each, by stage. Meshes of stages have one
            shape, and stages may share one. The caller closes them.
        data_dir: folder of this host that is searched for corpus, tokenizer and checkpoint missing at the job's path.
            Stages between the first and the last one need neither corpus nor tokenizer.
        allowed_models: modules and factories of users' own models that jobs may name, see `build_model`.
        around_phase: gives a context manager that each forward and each backward pass runs in.
        on_non_finite: callback, called for a micro-batch whose gradient has a NaN or an infinity in these stages. Its
            arguments are the index and the first such parameter in the order of the backward pass.

    Attributes:
        layout: layout of the whole model's parameters.
        range_steps: each range of these stages, by its index, in order.
        all_ranges: number of ranges of the whole pipeline; with one, micro-batches don't overlap.
        evaluation_batches: number of held-out batches that the job evaluates; 0 if neither these stages nor the
            submitter could count them.
        tokens_per_micro_batch: tokens (samples, for a regression) in one micro-batch.
        vocabulary: number of tokens that the model knows; 0 for a model without tokens.
        activation_bytes: most memory of one chip that forward passes kept for their backward passes in the newest
            lease, for each mesh, by the first of its stages. It is empty before the first lease, and for a whole model.

    Raises:
        Refused: data is missing or unusable, sizes are impossible, or the model or its stages can't be built.
    """

    def __init__(
        self,
        config: JobConfig,
        mesh: Mesh | Mapping[int, Mesh],
        data_dir: Path | None = None,
        allowed_models: Collection[str] = (),
        *,
        around_phase: PassObserver = unobserved,
        on_non_finite: Callable[[int, str], None] | None = None,
    ) -> None:
        if isinstance(mesh, Mesh):
            pipeline, meshes, run = ONE_STAGE, {0: mesh}, None
        else:
            assert config.pipeline is not None
            pipeline, meshes, run = config.pipeline, dict(mesh), StageRun(min(mesh), len(mesh))
        self._config = config
        self._pipeline = pipeline
        self._meshes = meshes
        self._mesh = next(iter(meshes.values()))
        self._around_phase = around_phase
        self._on_non_finite = on_non_finite
        self._data = JobData.open(config, data_dir) if reads_data(config, run) else None
        data = self._data or UnreadData.of_job(config)
        # Unless it is the only range, the whole model only names parameters here: they get no values.
        self._model = build_model(config.model, data.vocabulary, self._mesh, allowed_models)
        self.layout = build_layout(self._model, decay_all=config.optimizer.weight_decay_on == "all")
        split = pipeline.split
        self.range_steps: dict[int, RangeStep] = {}
        for index, blocks in enumerate(split.ranges):
            own = meshes.get(split.stage_of(index))
            if own is None:
                continue
            model = self._model
            if not blocks.is_whole:
                model = build_range(config.model, data.vocabulary, own, blocks, allowed_models)
            self.range_steps[index] = RangeStep(config, own, data, self.layout, model, blocks, data_dir)
        self.all_ranges = len(split.ranges)
        self.evaluation_batches = (
            self._data.evaluation_batches if self._data else config.evaluation_batches or 0
        )
        self.tokens_per_micro_batch = data.rows_per_micro_batch
        self.vocabulary = data.vocabulary
        self.activation_bytes: dict[int, int] = {}

    @property
    def ranges(self) -> dict[int, slice]:
        """The part of the layout that each range of these stages has, by the index of the range, in order."""
        weights = {index: each.weights for index, each in self.range_steps.items()}
        return {index: slice(own.offset, own.offset + own.elements) for index, own in weights.items()}

    @property
    def loaded(self) -> tuple[int, ...]:
        """Indices of the layout's entries that these ranges load, in order: their own and those of tied tables."""
        return tuple(sorted({index for each in self.range_steps.values() for index in each.weights.loaded}))

    @property
    def array_sizes(self) -> ArraySizes:
        """Largest arrays that these ranges exchange with others."""
        sizes = [each.array_sizes for each in self.range_steps.values()]
        return replace(sizes[0], tied_elements=max(each.tied_elements for each in sizes))

    def initial_weights(self) -> Float32Array:
        """Return the ranges' parts of the weights that training starts from, flat, one after another.

        They come from the checkpoint that the job names. Without one they follow from the job's seed and the
        parameters' names.

        Raises:
            Refused: the checkpoint is not on this host, or has changed since the job was submitted.
        """
        sizes = [each.weights.elements for each in self.range_steps.values()]
        weights, start = np.empty(sum(sizes), np.float32), 0
        for each, size in zip(self.range_steps.values(), sizes, strict=True):
            each.initial_weights(weights[start : start + size])
            start += size
        return weights

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Let passes wait for newer weights, parameter by parameter.

        Args:
            fetch: callback, called before a pass uses a parameter that has not been loaded since, with the index of its
                layout entry; returns when it has been loaded.
        """
        for each in self.range_steps.values():
            each.weights.expect(fetch)

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh of each range that needs it; others are ignored.

        Args:
            entry_index: index of its layout entry.
            values: float32, flat.
        """
        for each in self.range_steps.values():
            if each.weights.needs(entry_index):
                each.weights.load(entry_index, values)

    def micro_batches(
        self, step: int, first: int, count: int, add_leaf: AddLeaf, exchange: PassExchange | None = None
    ) -> list[float]:
        """Compute the gradients of a lease's micro-batches in the order of the schedule.

        Args:
            step: step of the job.
            first: index of the first micro-batch. With step and job seed, an index determines data and dropout.
            count: number of micro-batches.
            add_leaf: takes the gradients, range by range. What it raises ends the passes.
            exchange: carries activations and gradients between ranges; None if all of them are here.

        Returns:
            The mean loss of each micro-batch, in index order; empty without the last range.
        """
        schedule = self._pipeline.make_schedule(count, worker_stages=len(self._meshes))
        passes = Passes(
            step, first, schedule, self.range_steps, add_leaf, exchange or LocalExchange(), self._around_phase
        )
        lowest = min(self.range_steps)
        memory = ActivationMemory(self._meshes) if self.all_ranges > 1 else None
        try:
            for one in self._order(schedule):
                passes.run(one)
                if not one.is_backward:
                    if memory is not None:
                        memory.sample(one.range_index % schedule.stages)
                elif one.range_index == lowest:
                    name = passes.non_finite.pop(one.micro_batch, "")
                    if name and self._on_non_finite is not None:
                        self._on_non_finite(first + one.micro_batch, name)
        finally:
            passes.clear()
        if memory is not None:
            self.activation_bytes = memory.peak_bytes()
        return passes.losses

    def evaluate(self, index: int, exchange: PassExchange | None = None) -> tuple[float, int] | None:
        """Pass the `index`-th held-out batch that the job evaluates through these ranges, without dropout.

        Args:
            index: index of the batch.
            exchange: carries activations between ranges; None if all of them are here.

        Returns:
            The sum of the rows' losses (float64), and the number of rows: tokens or samples. None without the last
            range.
        """
        exchange = exchange or LocalExchange()
        for range_index, each in self.range_steps.items():
            one = Pass(is_backward=False, range_index=range_index, micro_batch=index)
            activation = exchange.receive(one) if range_index else None
            if each.blocks.is_last:
                return each.evaluate(index, activation)
            exchange.send(one._replace(range_index=range_index + 1), each.pass_evaluation(index, activation))
        return None

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the whole model, by name.

        They are `config.json`, `tokenizer.json` for a model with a tokenizer, and `constants.safetensors` if other
        programs expect untrained tensors. Stages that read no data don't know the tokenizer, and leave its file out.
        """
        with name_own_model_in_errors(self._config.model):
            return describe_model(self._model, None if self._data is None else self._data.tokenizer)

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Free the weights on the meshes."""
        for each in self.range_steps.values():
            each.close()

    def _order(self, schedule: Schedule) -> Iterator[Pass]:
        """Yield the passes of these stages in an order that one thread can run."""
        if len(self._meshes) == 1:
            return schedule.passes(next(iter(self._meshes)))
        stages = schedule.stages
        return (one for one in schedule.merged_passes() if one.range_index % stages in self._meshes)
