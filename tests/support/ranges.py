"""All ranges of a split model, one after the other on one mesh."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from mesh.device import Mesh
from services.config.job import JobConfig
from services.pipeline.split import Split
from training.job_data import JobData
from training.models.build import build_model, build_range
from training.models.initialise import build_layout
from training.range_step import PassInFlight, RangeStep


class Ranges:
    """The ranges of a job's model, and what goes from one to the other.

    Args:
        config: config of the job.
        mesh: open mesh, on which all ranges are.
        lengths: number of blocks of each range.
        allowed_models: modules of users' own models.
    """

    def __init__(
        self, config: JobConfig, mesh: Mesh, lengths: tuple[int, ...], allowed_models: Collection[str] = ()
    ) -> None:
        data = JobData.open(config)
        model = build_model(config.model, data.vocabulary, mesh, allowed_models)
        self.layout = build_layout(model, decay_all=True)
        self.steps = []
        for blocks in Split(lengths).ranges:
            part = build_range(config.model, data.vocabulary, mesh, blocks, allowed_models)
            self.steps.append(RangeStep(config, mesh, data, self.layout, part, blocks))
        self._in_flight: dict[int, list[PassInFlight]] = {}

    def load(self) -> None:
        """Put initial weights on the mesh."""
        weights = np.concatenate([step.initial_weights() for step in self.steps])
        for step in self.steps:
            for index in step.weights.loaded:
                entry = self.layout.entries[index]
                step.weights.load(index, weights[entry.offset : entry.stop])

    def forward(self, at: int, index: int) -> None:
        """Run the forward passes of micro-batch `index` of step `at`."""
        self._in_flight[index] = []
        activation = None
        for step in self.steps:
            one, activation = step.forward(at, index, activation)
            self._in_flight[index].append(one)

    def backward(self, index: int) -> tuple[float, Any]:
        """Run the backward passes of a micro-batch; return its loss and its gradient in layout order."""
        out = np.full(self.layout.elements, np.nan, np.float32)
        passes = self._in_flight.pop(index)
        gradient, loss, tied = None, None, None
        for step, one in reversed(list(zip(self.steps, passes, strict=True))):
            part = out[step.weights.offset :][: step.weights.elements]
            finished = step.backward(one, gradient, tied, part, lambda offset: None)
            gradient = finished.gradient
            loss = finished.loss if loss is None else loss
            tied = finished.tied if tied is None else tied
        assert loss is not None and gradient is None
        return loss, out

    def evaluate(self, index: int) -> tuple[float, int]:
        """Return sum and number of the losses of a held-out batch."""
        activation = None
        for step in self.steps[:-1]:
            activation = step.pass_evaluation(index, activation)
        return self.steps[-1].evaluate(index, activation)
