"""A worker's training step: everything of a job that runs on its mesh. One thread calls it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.fingerprint import compute_fingerprint
from services.config.job import JobConfig
from services.pipeline.schedule import Pass
from services.tensors.layout import Layout
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
from training.data.dataset import (
    Batch,
)
from training.job_data import JobData
from training.models.build import (
    build_model,
)
from training.models.checkpoint_files import describe_model
from training.models.custom import (
    name_own_model_in_errors,
)
from training.models.initialise import (
    build_layout,
)
from training.models.model import (
    Model,
)
from training.ops.losses import read_losses
from training.seeds import derive_dropout_seeds
from training.traced_pass import TracedPass
from training.weights import Weights

Float32Array = npt.NDArray[np.float32]


class PassPhase(str, Enum):
    """The two phases of a micro-batch that can be observed."""

    FORWARD_PASS = "FORWARD_PASS"
    BACKWARD_PASS = "BACKWARD_PASS"


class PassObserver(Protocol):
    """Gives a context manager that a pass runs in."""

    def __call__(self, phase: PassPhase, one: Pass | None = None) -> AbstractContextManager[None]:
        """Return the context of a pass.

        Args:
            phase: its phase.
            one: its range and micro-batch in the step; None for the whole model.
        """


def unobserved(phase: PassPhase, one: Pass | None = None) -> AbstractContextManager[None]:
    """Return a context in which nothing is observed."""
    del phase, one
    return nullcontext()


class TrainingStep:
    """Model and data of a job on a mesh.

    Args:
        config: config of the job.
        mesh: the mesh opened for the job; the caller closes it.
        data_dir: folder of this host that is searched for corpus, tokenizer and checkpoint missing at the job's path.
        allowed_models: modules and factories of users' own models that jobs may name, see `build_model`.
        around_phase: gives a context manager that each forward and each backward pass runs in.
        on_non_finite: callback, called for a micro-batch whose gradient has a NaN or an infinity. Its arguments are the
            index and the first such parameter in the order of the backward pass.

    Attributes:
        layout: layout of the model's parameters.
        data: batches, tokenizer and vocabulary.
        weights: the parameters on the mesh.
        evaluation_batches: number of held-out batches that the job evaluates.
        tokens_per_micro_batch: tokens (samples, for a regression) in one micro-batch.
        vocabulary: number of tokens that the model knows; 0 for a model without tokens.

    Raises:
        Refused: data is missing or unusable, sizes are impossible, or the model can't be built.
    """

    def __init__(
        self,
        config: JobConfig,
        mesh: Mesh,
        data_dir: Path | None = None,
        allowed_models: Collection[str] = (),
        *,
        around_phase: PassObserver = unobserved,
        on_non_finite: Callable[[int, str], None] | None = None,
    ) -> None:
        self._config = config
        self._mesh = mesh
        self._data_dir = data_dir
        self.data = JobData.open(config, data_dir)
        self.vocabulary = self.data.vocabulary
        self._model: Model = build_model(config.model, self.vocabulary, mesh, allowed_models)
        self.layout: Layout = build_layout(self._model, decay_all=config.optimizer.weight_decay_on == "all")
        self.weights = Weights(mesh, self.layout, tuple(self._model.parameters()))
        self._traced = TracedPass(mesh, self._forward_and_backward) if config.device.trace else None
        self._around_phase = around_phase
        self._on_non_finite = on_non_finite
        self.evaluation_batches = self.data.evaluation_batches
        self.tokens_per_micro_batch = self.data.dataset.rows_per_micro_batch

    def initial_weights(self) -> Float32Array:
        """Return the weights that training starts from, flat in layout order.

        They come from the checkpoint that the job names. Without one they follow from the job's seed and the
        parameters' names.

        Raises:
            Refused: the checkpoint is not on this host, or has changed since the job was submitted.
        """
        return self.weights.initial(self._config, self._data_dir)

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Let passes wait for newer weights, parameter by parameter.

        Args:
            fetch: callback, called before a pass uses a parameter that has not been loaded since, with the index of its
                layout entry; returns when it has been loaded.
        """
        self.weights.expect(fetch)

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh.

        Args:
            entry_index: index of its layout entry.
            values: float32, flat.
        """
        self.weights.load(entry_index, values)

    def micro_batch(self, step: int, index: int, out: Float32Array, ready: Callable[[int], None]) -> float:
        """Compute the gradient of micro-batch `index` of a step and return its mean loss.

        Args:
            step: step of the job.
            index: index in the step; with step and job seed it determines data and dropout.
            out: float32 [layout.elements], filled with the gradient of the mean loss. The last entry is written first,
                and each as early as the backward pass has it.
            ready: callback, called with an offset when `out` is complete from there to its end; the last call is with
                0.
        """
        config, mesh = self._config, self._mesh
        batch = self.data.dataset.micro_batch(step, index)
        gradients = self.weights.sink(out, ready, self.read_gradient)
        with name_own_model_in_errors(config.model):
            if self._traced is not None:
                self.weights.fetch_all()  # a trace can't wait for weights in between
                loss = self._traced.run(batch, gradients.take)
            else:
                tape = Tape(mesh, dropout_seed=derive_dropout_seeds(config.seed, step, index))
                loss = self._forward_and_backward(tape, batch, gradients.take)
            gradients.finish()
            if gradients.non_finite and self._on_non_finite is not None:
                self._on_non_finite(index, gradients.non_finite)
            return float(read_losses(mesh, loss).sum() / batch.rows)

    def read_gradient(self, parameter: Parameter, gradient: Tensor) -> Float32Array:
        """Return a complete gradient from the mesh, flat and in the order of its logical shape."""
        return self.weights.read_gradient(parameter, gradient)

    def evaluate(self, index: int) -> tuple[float, int]:
        """Compute the losses of the `index`-th held-out batch that the job evaluates, without dropout.

        Returns:
            The sum of the rows' losses (float64), and the number of rows: tokens or samples.
        """
        batch = self.data.evaluation_batch(index)
        tape = Tape(self._mesh, recording=False)
        with name_own_model_in_errors(self._config.model):
            losses = read_losses(self._mesh, self._model.loss(tape, batch.inputs, batch.targets))
        return float(losses[: batch.rows].sum()), batch.rows

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the model, by name.

        They are `config.json`, `tokenizer.json` for a model with a tokenizer, and `constants.safetensors` if other
        programs expect untrained tensors.
        """
        with name_own_model_in_errors(self._config.model):
            return describe_model(self._model, self.data.tokenizer)

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Free the weights on the mesh."""
        if self._traced is not None:
            self._traced.close()
        self.weights.close()

    def _forward_and_backward(
        self, tape: Tape, batch: Batch, on_final: Callable[[Parameter, Tensor], None]
    ) -> Variable:
        with self._around_phase(PassPhase.FORWARD_PASS):
            loss = self._model.loss(tape, batch.inputs, batch.targets)
        with self._around_phase(PassPhase.BACKWARD_PASS):
            # Each device weighs its rows in the mean over all rows, so the sum over devices is the mean gradient.
            tape.backward(loss, 1 / batch.rows, on_final)
        return loss
