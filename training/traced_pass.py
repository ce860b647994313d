"""A forward and backward pass that the device repeats from a trace of its commands (`device_config.trace`).

A trace records commands and addresses. So inputs, weights, loss and gradients must stay in place: inputs and weights
are overwritten before each pass, and results are read from the same tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mesh.command_trace import Trace, capture_trace
from mesh.device import Mesh
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Tensor, Variable
from training.data.dataset import (
    Batch,
)
from training.inputs import KeptInputs

log = logging.getLogger("tiermesh.worker")

Gradients = list[tuple[Parameter, Tensor]]

ComputeLoss = Callable[[Tape, Batch], Variable]
"""Forward pass of a batch on a tape; gives the loss of each row."""


class TracedPass:
    """A pass that is captured when it runs for the second time and repeated from then on.

    The first run is a normal one, which compiles the programs.

    Where the device refuses to capture, every pass runs normally.

    Args:
        mesh: the mesh to run on, opened with memory for traces.
        compute_loss: the forward pass; it must do the same operations for every batch.
    """

    def __init__(self, mesh: Mesh, compute_loss: ComputeLoss) -> None:
        self._mesh = mesh
        self._compute_loss = compute_loss
        self._inputs: KeptInputs | None = None
        self._trace: Trace | None = None
        self._refused = False
        self._loss: Variable | None = None
        self._gradients: Gradients = []

    def forward(self, batch: Batch) -> tuple[Tape, Variable]:
        """Run a forward pass, and return its tape and the loss; a repeated one runs the backward pass too."""
        mesh = self._mesh
        if self._inputs is None:
            self._inputs = KeptInputs(mesh, batch.inputs, batch.targets)
            return self._run(batch)
        self._inputs.fill(batch.inputs, batch.targets)
        if self._trace is None and not self._refused:
            self._trace = self._captured(batch)
        if self._trace is None or self._loss is None:
            return self._run(batch)
        self._trace.execute()
        return _RepeatedTape(mesh, self._gradients), self._loss

    def close(self) -> None:
        """Free the memory of the trace."""
        if self._trace is not None:
            self._trace.release()
        self._trace, self._loss = None, None
        self._gradients.clear()

    def _run(self, batch: Batch) -> tuple[Tape, Variable]:
        tape = Tape(self._mesh, inputs=self._inputs)
        return tape, self._compute_loss(tape, batch)

    def _captured(self, batch: Batch) -> Trace | None:
        """Return the trace of a pass; None if the device refuses to capture."""
        try:
            with capture_trace(self._mesh) as trace:
                tape, self._loss = self._run(batch)
                tape.backward(
                    self._loss,
                    1 / batch.rows,
                    lambda parameter, gradient: self._gradients.append((parameter, gradient)),
                )
        except RuntimeError as error:
            reason = str(error).split("backtrace:")[0].strip().replace("\n", " ")
            log.warning(
                "device_config.trace: the device can't capture a trace (%s); passes run op by op", reason
            )
            self._refused, self._loss = True, None
            self._gradients.clear()
            assert self._inputs is not None
            self._inputs.fill(batch.inputs, batch.targets)
            return None
        return trace


class _RepeatedTape(Tape):
    """The tape of a repeated pass, whose gradients are on the mesh already."""

    def __init__(self, mesh: Mesh, gradients: Gradients) -> None:
        super().__init__(mesh)
        self._gradients = gradients

    def backward(
        self, result: Variable, gradient: float | Tensor, on_final: Callable[[Parameter, Tensor], None]
    ) -> None:
        """Hand on the gradients."""
        del result, gradient  # as they were captured
        for parameter, value in self._gradients:
            on_final(parameter, value)
