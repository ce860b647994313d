"""A worker's training step: everything of a job that runs on its mesh. One thread calls it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from mesh.device import Mesh
from mesh.fingerprint import compute_fingerprint
from mesh.transfer import download
from services.checkpoints.format import (
    CONSTANTS_FILE,
)
from services.config.job import JobConfig
from services.config.models import RegressionConfig
from services.errors import Refused
from services.tensors.kernels.arithmetic import all_finite
from services.tensors.layout import Layout
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
from training.data.dataset import (
    Batch,
    Dataset,
)
from training.data.load import (
    load_corpus,
)
from training.data.regression import (
    RegressionDataset,
)
from training.data.tokenizer import (
    Tokenizer,
)
from training.data.tokens import (
    TokenDataset,
)
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.custom import (
    name_own_model_in_errors,
)
from training.models.initialise import (
    build_layout,
    draw_initial_value,
)
from training.models.model import (
    Model,
)
from training.models.pretrained import load_pretrained_weights
from training.parameter_placement import from_mesh
from training.seeds import derive_seed32
from training.traced_pass import TracedPass

Float32Array = npt.NDArray[np.float32]


class PassPhase(str, Enum):
    """The two phases of a micro-batch that can be observed."""

    FORWARD_PASS = "FORWARD_PASS"
    BACKWARD_PASS = "BACKWARD_PASS"


def _unobserved(phase: PassPhase) -> AbstractContextManager[None]:
    del phase
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
        around_phase: Callable[[PassPhase], AbstractContextManager[None]] = _unobserved,
        on_non_finite: Callable[[int, str], None] | None = None,
    ) -> None:
        self._config = config
        self._mesh = mesh
        self._dataset, self._tokenizer = _dataset(config, data_dir)
        self._data_dir = data_dir
        self.vocabulary = _vocabulary(config, self._tokenizer)
        self._model: Model = build_model(config.model, self.vocabulary, mesh, allowed_models)
        self._parameters = tuple(self._model.parameters())
        self.layout: Layout = build_layout(self._model, decay_all=config.optimizer.weight_decay_on == "all")
        self._indices = {parameter: index for index, parameter in enumerate(self._parameters)}
        self._traced = TracedPass(mesh, self._forward_and_backward) if config.device.trace else None
        self._around_phase = around_phase
        self._on_non_finite = on_non_finite
        held_out = self._dataset.evaluation_batches
        self.evaluation_batches = min(config.validation_batches or held_out, held_out)
        self.tokens_per_micro_batch = self._dataset.rows_per_micro_batch

    def initial_weights(self) -> Float32Array:
        """Return the weights that training starts from, flat in layout order.

        They come from the checkpoint that the job names. Without one they follow from the job's seed and the
        parameters' names.

        Raises:
            Refused: the checkpoint is not on this host, or has changed since the job was submitted.
        """
        if self._config.pretrained is not None:
            return load_pretrained_weights(self._config, self.layout, self._data_dir)
        seed = self._config.seed
        return np.concatenate([draw_initial_value(parameter, seed) for parameter in self._parameters])

    def expect(self, fetch: Callable[[int], None]) -> None:
        """Let passes wait for newer weights, parameter by parameter.

        Args:
            fetch: callback, called before a pass uses a parameter that has not been loaded since, with the index of its
                layout entry; returns when it has been loaded.
        """
        for index, parameter in enumerate(self._parameters):
            parameter.fetch = partial(fetch, index)

    def load(self, entry_index: int, values: Float32Array) -> None:
        """Put one parameter on the mesh.

        Args:
            entry_index: index of its layout entry.
            values: float32, flat.
        """
        parameter = self._parameters[entry_index]
        parameter.fetch = None
        load_parameter(self._mesh, parameter, values)

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
        batch = self._dataset.micro_batch(step, index)
        gradients = _GradientSink(self.layout, self._indices, self.read_gradient, out, ready)
        with name_own_model_in_errors(config.model):
            if self._traced is not None:
                self._fetch_all()  # a trace can't wait for weights in between
                loss = self._traced.run(batch, gradients.take)
            else:
                tape = Tape(
                    mesh, dropout_seed=lambda site: derive_seed32(config.seed, "dropout", step, index, site)
                )
                loss = self._forward_and_backward(tape, batch, gradients.take)
            gradients.finish()
            if gradients.non_finite and self._on_non_finite is not None:
                self._on_non_finite(index, gradients.non_finite)
            return float(self._rows(loss).sum() / batch.rows)

    def read_gradient(self, parameter: Parameter, gradient: Tensor) -> Float32Array:
        """Return a complete gradient from the mesh, flat and in the order of its logical shape."""
        return from_mesh(parameter, download(self._mesh, gradient, parameter.placements), self._mesh)

    def evaluate(self, index: int) -> tuple[float, int]:
        """Compute the losses of the `index`-th held-out batch that the job evaluates, without dropout.

        Returns:
            The sum of the rows' losses (float64), and the number of rows: tokens or samples.
        """
        # A job that evaluates fewer batches than are held out takes them at even distances.
        batch = self._dataset.evaluation_batch(
            index * self._dataset.evaluation_batches // self.evaluation_batches
        )
        tape = Tape(self._mesh, recording=False)
        with name_own_model_in_errors(self._config.model):
            losses = self._rows(self._model.loss(tape, batch.inputs, batch.targets))
        return float(losses[: batch.rows].sum()), batch.rows

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the model, by name.

        They are `config.json`, `tokenizer.json` for a model with a tokenizer, and `constants.safetensors` if other
        programs expect untrained tensors.
        """
        with name_own_model_in_errors(self._config.model):
            described = json.dumps(self._model.hugging_face_config(), indent=2) + "\n"
            constants = self._model.constant_exports()
        files = {"config.json": described.encode()}
        if self._tokenizer is not None:
            files["tokenizer.json"] = self._tokenizer.to_json().encode()
        if constants:
            files[CONSTANTS_FILE] = save(constants, metadata={"format": "pt"})
        return files

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of this worker's gradients depend on."""
        return compute_fingerprint(self._mesh)

    def close(self) -> None:
        """Free the weights on the mesh."""
        if self._traced is not None:
            self._traced.close()
        for parameter in self._parameters:
            parameter.value = None

    def _forward_and_backward(
        self, tape: Tape, batch: Batch, on_final: Callable[[Parameter, Tensor], None]
    ) -> Variable:
        with self._around_phase(PassPhase.FORWARD_PASS):
            loss = self._model.loss(tape, batch.inputs, batch.targets)
        with self._around_phase(PassPhase.BACKWARD_PASS):
            # Each device weighs its rows in the mean over all rows, so the sum over devices is the mean gradient.
            tape.backward(loss, 1 / batch.rows, on_final)
        return loss

    def _fetch_all(self) -> None:
        for parameter in self._parameters:
            _ = parameter.value

    def _rows(self, loss: Variable) -> npt.NDArray[np.float64]:
        """Return the loss of every row of the batch, sequence by sequence."""
        return download(self._mesh, loss.value, loss.placements).reshape(-1).astype(np.float64)


class _DatasetSizes(TypedDict):
    """What a dataset of any kind needs to know of a job."""

    seed: int
    batch_size: int
    validation_batch_size: int
    micro_batches: int
    replacement: bool


class _GradientSink:
    """Flat array that takes gradients in any order and reports the offset from which on they are complete.

    Attributes:
        non_finite: name of the first parameter whose gradient has a NaN or an infinity; empty if none has.
    """

    def __init__(
        self,
        layout: Layout,
        indices: dict[Parameter, int],
        read: Callable[[Parameter, Tensor], Float32Array],
        out: Float32Array,
        ready: Callable[[int], None],
    ) -> None:
        self._read = read
        self._layout = layout
        self._indices = indices
        self._out = out
        self._ready = ready
        self._missing_below = len(layout.entries)
        self._early: set[int] = set()
        self.non_finite = ""

    def take(self, parameter: Parameter, gradient: Tensor) -> None:
        """Read a complete gradient from the mesh into its place."""
        index = self._indices[parameter]
        entry = self._layout.entries[index]
        place = self._out[entry.offset : entry.stop]
        place[:] = self._read(parameter, gradient)
        if not self.non_finite and not all_finite(place):  # before `ready` adds other micro-batches to it
            self.non_finite = entry.name
        self._early.add(index)
        offset = None
        while self._missing_below - 1 in self._early:
            self._missing_below -= 1
            self._early.remove(self._missing_below)
            offset = self._layout.entries[self._missing_below].offset
        if offset is not None:
            self._ready(offset)

    def finish(self) -> None:
        """Check that every gradient has arrived.

        Raises:
            ValueError: the model lists a parameter that its loss does not use.
        """
        if self._missing_below:
            name = self._layout.entries[self._missing_below - 1].name
            raise ValueError(f"no gradient of {name}: parameters() lists it, but the loss does not use it")


def _vocabulary(config: JobConfig, tokenizer: Tokenizer | None) -> int:
    """Return the number of tokens: that of the model, else that of the texts' tokenizer or of the token ids, else 0."""
    data, size = config.data, getattr(config.model, "vocab_size", None)
    if data is None:
        return 0
    if tokenizer is not None and any(file.kind == "text" for file in data.files):
        if size is not None and tokenizer.size > size:
            raise Refused(
                f"training_config.tokenizer_path: the tokenizer has {tokenizer.size} tokens, expected at most the "
                f"{size} of the model; use the tokenizer that belongs to it"
            )
        return int(size or tokenizer.size)
    return int(size or data.vocab_size or 0)


def _dataset(config: JobConfig, data_dir: Path | None) -> tuple[Dataset, Tokenizer | None]:
    sizes = _DatasetSizes(
        seed=config.seed,
        batch_size=config.batch_size,
        validation_batch_size=config.validation_batch_size,
        micro_batches=config.micro_batches,
        replacement=config.replacement,
    )
    if isinstance(config.model, RegressionConfig):
        return RegressionDataset(config.model, **sizes), None
    if config.data is None:
        raise ValueError("job config: a language model without data, which JobConfig should have refused")
    sources, tokenizer = load_corpus(config.data, data_dir)
    window = config.model.max_sequence_length
    return TokenDataset(sources, weights=config.data.weights, tokens=window, **sizes), tokenizer
