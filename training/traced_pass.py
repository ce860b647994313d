"""A forward and backward pass that the device repeats by itself, from a trace of its commands (`device_config.trace`).

What a trace records are commands and addresses, so inputs, weights, loss and gradients stay where they are: inputs and
weights are filled in anew, and results are read from the same tensors every time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from mesh.command_trace import Trace, capture_trace
from mesh.device import Mesh
from training.autograd import Parameter, Tape, Tensor, Variable
from training.data import Batch
from training.inputs import KeptInputs

log = logging.getLogger("tiermesh.worker")

Compute = Callable[[Tape, Batch, Callable[[Parameter, Tensor], None]], Variable]
"""Forward and backward pass of a batch on a tape, each complete gradient handed on; gives the loss."""


class TracedPass:
    """Runs `compute` as it is the first time (which compiles its programs), captured the second time, then repeated.

    Where the device refuses to capture, every pass runs as the first one did.

    Args:
        mesh: to run on; opened with room for traces.
        compute: does the same operations whatever the batch.
    """

    def __init__(self, mesh: Mesh, compute: Compute) -> None:
        self._mesh = mesh
        self._compute = compute
        self._inputs: KeptInputs | None = None
        self._trace: Trace | None = None
        self._refused = False
        self._loss: Variable | None = None
        self._gradients: list[tuple[Parameter, Tensor]] = []

    def run(self, batch: Batch, on_final: Callable[[Parameter, Tensor], None]) -> Variable:
        """One pass: hands on each parameter's gradient, last used first, and gives the loss."""
        mesh = self._mesh
        if self._inputs is None:
            self._inputs = KeptInputs(mesh, batch.inputs, batch.targets)
            return self._compute(Tape(mesh, inputs=self._inputs), batch, on_final)
        self._inputs.fill(batch.inputs, batch.targets)
        if self._trace is None and not self._refused:
            self._trace = self._captured(batch)
        if self._trace is None or self._loss is None:
            return self._compute(Tape(mesh, inputs=self._inputs), batch, on_final)
        self._trace.execute()
        for parameter, gradient in self._gradients:
            on_final(parameter, gradient)
        return self._loss

    def close(self) -> None:
        """Give the trace's room back."""
        if self._trace is not None:
            self._trace.release()
        self._trace, self._loss = None, None
        self._gradients.clear()

    def _captured(self, batch: Batch) -> Trace | None:
        """The trace of a pass; None if the device refuses."""
        try:
            with capture_trace(self._mesh) as trace:
                self._loss = self._compute(
                    Tape(self._mesh, inputs=self._inputs),
                    batch,
                    lambda parameter, gradient: self._gradients.append((parameter, gradient)),
                )
        except RuntimeError as error:
            reason = str(error).split("backtrace:")[0].strip().replace("\n", " ")
            log.warning("device_config.trace: the device captures no trace (%s); passes run op by op", reason)
            self._refused, self._loss = True, None
            self._gradients.clear()
            assert self._inputs is not None
            self._inputs.fill(batch.inputs, batch.targets)
            return None
        return trace
