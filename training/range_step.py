"""A range of a model's blocks on a mesh: its weights, and its part of each micro-batch's passes.

A whole model is a range with nothing before it and nothing after it, and need not declare blocks. Several micro-batches
may be in flight. Each has a tape of its own, which holds its activations and gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.exact_transfer import download_exactly, exact_dtype, upload_exactly
from mesh.placement import Placements
from services.config.job import JobConfig
from services.errors import Refused
from services.pipeline.exchange import ArraySizes, ExactArray, FinishedPass, ReceivedKind, WrongArray
from services.pipeline.split import BlockRange
from services.tensors.layout import Layout
from training.autograd.tape import Tape
from training.autograd.variable import Gradient, Parameter, Tensor, Variable
from training.data.dataset import Batch
from training.job_data import RangeData
from training.models.custom import name_own_model_in_errors
from training.models.model import Model, RangeModel
from training.ops.losses import read_losses
from training.ops.placing import rows_of
from training.parameter_placement import place_summand, shape_on_mesh
from training.seeds import derive_dropout_seeds
from training.traced_pass import TracedPass
from training.weights import Weights

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class PassInFlight:
    """A micro-batch between a range's forward pass and its backward pass. Dropping it frees what it holds on the mesh.

    Attributes:
        name: the micro-batch, for errors.
        tape: record of the forward pass.
        entered: gradient of the activation that entered; None in the first range.
        result: the losses in the last range; elsewhere the activation that left, without its value.
        rows: number of losses.
    """

    name: str
    tape: Tape
    entered: Gradient | None
    result: Variable
    rows: int


class RangeStep:
    """A range of the blocks of a job's model on a mesh, with what belongs to the range; or the whole model.

    Args:
        config: config of the job.
        mesh: the mesh opened for the job; the caller closes it.
        data: data of the job; `UnreadData` suffices for a range that is neither first nor last.
        layout: layout of the whole model; see `build_layout`, which needs no values.
        model: what `build_range` returned for the range; for the whole model, what `build_model` returned.
        blocks: the range.
        data_dir: folder of this host that is searched for a checkpoint missing at the job's path.

    Attributes:
        blocks: the range.
        weights: parameters of the range, and the last range's copy of a tied embedding.
        takes_tied_part: whether `backward` needs the last range's part of the token embedding's gradient.

    Raises:
        Refused: the parameters are no part of the layout, or the job asks for a trace of a part of the model.
    """

    def __init__(
        self,
        config: JobConfig,
        mesh: Mesh,
        data: RangeData,
        layout: Layout,
        model: Model,
        blocks: BlockRange,
        data_dir: Path | None = None,
    ) -> None:
        if config.device.trace and not blocks.is_whole:
            raise Refused(
                "device_config.trace: true, expected false for a pipeline, whose micro-batches overlap; remove it"
            )
        self._config = config
        self._mesh = mesh
        self._data = data
        self._data_dir = data_dir
        self._model = model
        self._width = 0
        self._tied_table: Parameter | None = None
        self._tied_copy: Parameter | None = None
        if not blocks.is_whole:
            part = cast(RangeModel, model)
            self._width = part.width
            self._tied_table, self._tied_copy = part.tied_table, part.tied_copy
        parameters = tuple(model.parameters())
        _check_contiguous(
            parameters, layout, f"{config.model.model_type}, blocks {blocks.first} to {blocks.stop - 1}"
        )
        self.blocks = blocks
        self.takes_tied_part = self._tied_table is not None
        self.weights = Weights(mesh, layout, parameters, (self._tied_copy,) if self._tied_copy else ())
        self._traced = TracedPass(mesh, self._compute_loss) if config.device.trace else None

    @property
    def array_sizes(self) -> ArraySizes:
        """Largest arrays that enter or leave the range."""
        config = self._config
        rows_of_sample = self._data.rows_per_micro_batch // config.batch_size
        rows = rows_of_sample * max(config.batch_size, config.validation_batch_size)
        tied = self.tied_shape
        return ArraySizes(
            dtype=exact_dtype(self._mesh),
            activation_elements=rows * self._width,
            tied_elements=0 if tied is None else math.prod(tied),
        )

    @property
    def activation_shape(self) -> tuple[int, ...]:
        """Shape of the activation of a micro-batch that enters or leaves the range, and of its gradient."""
        return (1, 1, self._data.rows_per_micro_batch, self._width)

    @property
    def tied_shape(self) -> tuple[int, ...] | None:
        """Shape of the last range's part of the token embedding's gradient; None where the range has no part in it."""
        tied = self._tied_table or self._tied_copy
        # Each data-parallel device has a part.
        return None if tied is None else (self._mesh.data_size, 1, *shape_on_mesh(tied, self._mesh)[2:])

    def initial_weights(self, out: Float32Array | None = None) -> Float32Array:
        """Return the range's part of the weights that training starts from, see `Weights.initial`."""
        return self.weights.initial(self._config, self._data_dir, out)

    def forward(
        self, step: int, index: int, activation: ExactArray | None = None
    ) -> tuple[PassInFlight, ExactArray | None]:
        """Run the range's forward pass of micro-batch `index` of a step.

        Args:
            step: step of the job.
            index: index in the step; with step and job seed it determines data and dropout.
            activation: what the range before this one returned; None for the first range.

        Returns:
            The pass for `backward`, and the activation for the next range; None from the last one.

        Raises:
            WrongArray: the activation has another shape or dtype than this job's.
        """
        batch = self._data.micro_batch(step, index)
        name = f"micro-batch {index} of step {step}"
        entered = None
        if self._traced is not None:
            self.weights.fetch_all()  # a trace can't wait for weights in between
            tape, result = self._traced.forward(batch)
        else:
            tape = Tape(self._mesh, dropout_seed=derive_dropout_seeds(self._config.seed, step, index))
            entered, result = self._run(tape, batch, activation, name)
        gradient = None if entered is None else entered.gradient
        if self.blocks.is_last:
            return PassInFlight(name, tape, gradient, result, batch.rows), None
        left = Variable(None, result.placements, result.gradient)
        return PassInFlight(name, tape, gradient, left, batch.rows), self._read(result, batch)

    def backward(
        self,
        one: PassInFlight,
        gradient: ExactArray | None,
        tied: ExactArray | None,
        out: Float32Array,
        ready: Callable[[int], None],
    ) -> FinishedPass:
        """Run the range's backward pass of a micro-batch.

        Args:
            one: what `forward` returned for the micro-batch.
            gradient: gradient of the activation that left, from the range after this one; None for the last range.
            tied: the last range's part of the token embedding's gradient. The first range of a split model that ties
                them needs it; the others ignore it.
            out: float32 [weights.elements], filled with the gradient of the mean loss. The last entry is written first,
                and each as early as the backward pass has it.
            ready: callback, called with an index of `out` from which on it is complete; the last call is with 0.

        Raises:
            WrongArray: a gradient has another shape or dtype than this job's.
        """
        mesh, copy = self._mesh, self._tied_copy
        sink = self.weights.sink(out, ready)
        parts: list[ExactArray] = []

        def take(parameter: Parameter, value: Tensor) -> None:
            if parameter is copy:
                parts.append(download_exactly(mesh, value, parameter.gradient_placements))
            else:
                sink.take(parameter, value)

        with name_own_model_in_errors(self._config.model):
            self._add_tied_part(one, tied)
            if self.blocks.is_last:
                # Each device weighs its rows in the mean over all rows, so the sum over devices is the mean gradient.
                one.tape.backward(one.result, 1 / one.rows, take)
            else:
                received = self._receive_rows("gradient", gradient, one.rows, one.name)
                one.tape.backward(one.result, received, take)
            sink.finish()
            loss = float(read_losses(mesh, one.result).sum() / one.rows) if self.blocks.is_last else None
        return FinishedPass(
            gradient=self._read_entered(one),
            tied=parts[0] if parts else None,
            loss=loss,
            count=one.rows if self.blocks.is_last else 0,
            non_finite=sink.non_finite,
        )

    def pass_evaluation(self, index: int, activation: ExactArray | None = None) -> ExactArray:
        """Return what the next range's evaluation takes, for the `index`-th held-out batch that the job evaluates.

        Args:
            index: index of the batch.
            activation: what the range before this one returned; None for the first range.
        """
        batch = self._data.evaluation_batch(index)
        return self._read(self._evaluated(batch, activation, index), batch)

    def evaluate(self, index: int, activation: ExactArray | None = None) -> tuple[float, int]:
        """Compute the losses of the `index`-th held-out batch in the last range, without dropout.

        Returns:
            The sum of the rows' losses (float64), and the number of rows.
        """
        batch = self._data.evaluation_batch(index)
        result = self._evaluated(batch, activation, index)
        with name_own_model_in_errors(self._config.model):
            losses = read_losses(self._mesh, result)
        return float(losses[: batch.rows].sum()), batch.rows

    def close(self) -> None:
        """Free the weights on the mesh."""
        if self._traced is not None:
            self._traced.close()
        self.weights.close()

    def _evaluated(self, batch: Batch, activation: ExactArray | None, index: int) -> Variable:
        tape = Tape(self._mesh, recording=False)
        return self._run(tape, batch, activation, f"held-out batch {index}")[1]

    def _run(
        self, tape: Tape, batch: Batch, activation: ExactArray | None, name: str
    ) -> tuple[Variable | None, Variable]:
        """Return the activation that entered, and the losses or the activation that leaves."""
        if self.blocks.is_whole:
            return None, self._compute_loss(tape, batch)
        model, entered = cast(RangeModel, self._model), None
        if not self.blocks.is_first:
            received = self._receive_rows("activation", activation, batch.inputs.size, name)
            entered = tape.begin(received, rows_of(self._mesh))
        with name_own_model_in_errors(self._config.model):
            result = model.run_blocks(tape, batch.inputs if entered is None else entered)
            if result.placements != rows_of(self._mesh):
                raise ValueError(
                    f"run_blocks: the result is placed {result.placements}, expected {rows_of(self._mesh)}"
                )
            if self.blocks.is_last:
                result = model.leave(tape, result, batch.targets)
        return entered, result

    def _compute_loss(self, tape: Tape, batch: Batch) -> Variable:
        """Return the losses of a batch that passes the whole model."""
        with name_own_model_in_errors(self._config.model):
            return self._model.loss(tape, batch.inputs, batch.targets)

    def _read(self, result: Variable, batch: Batch) -> ExactArray:
        """Return what run_blocks computed.

        Its shape is checked here, because the next range takes a wrong one for a lie.
        """
        array = download_exactly(self._mesh, result.value, result.placements)
        expected = (1, 1, batch.inputs.size, self._width)
        if array.shape != expected:
            raise ValueError(f"run_blocks: the result is {list(array.shape)}, expected {list(expected)}")
        return array

    def _read_entered(self, one: PassInFlight) -> ExactArray | None:
        """Return the gradient of the activation that entered; None in the first range."""
        if one.entered is None:
            return None
        return download_exactly(self._mesh, one.entered.complete(self._mesh), one.entered.target)

    def _add_tied_part(self, one: PassInFlight, tied: ExactArray | None) -> None:
        table, shape = self._tied_table, self.tied_shape
        if table is None or shape is None:
            return
        # Each data-parallel device has a part, which is added to its own before the sum over devices.
        placements = place_summand(table, self._mesh)
        what = f"gradient of {table.name} in {one.name}"
        one.tape.add_summand(table, self._receive("tied part", tied, shape, placements, what), placements)

    def _receive_rows(self, kind: ReceivedKind, array: ExactArray | None, rows: int, name: str) -> Tensor:
        return self._receive(kind, array, (1, 1, rows, self._width), rows_of(self._mesh), name)

    def _receive(
        self,
        kind: ReceivedKind,
        array: ExactArray | None,
        shape: tuple[int, ...],
        placements: Placements,
        name: str,
    ) -> Tensor:
        """Return what another range sent as a tensor, if it is what this job's ranges exchange."""
        place = f"{kind} of {name}, for blocks {self.blocks.first} to {self.blocks.stop - 1}"
        if array is None:
            raise Refused(f"{place}: none given, expected the result of the neighbouring range; pass it on")
        try:
            return upload_exactly(self._mesh, array, shape, placements)
        except ValueError as error:
            text = f"{place}: {error}; pass on what a range of the same job computed"
            raise WrongArray(kind, text) from error


def _check_contiguous(parameters: Sequence[Parameter], layout: Layout, place: str) -> None:
    """Check that parameters are a contiguous part of a layout, as those of a user's own model may not be."""
    names, whole = [parameter.name for parameter in parameters], [entry.name for entry in layout.entries]
    first = whole.index(names[0]) if names[0] in whole else 0
    for name, expected in zip_longest(names, whole[first : first + len(names)]):
        if name != expected:
            raise Refused(
                f"transformer_config.model_type: {place}: parameter {name}, expected {expected}, as a range has a part "
                "of the whole model's parameters, in their order; fix parameters()"
            )
