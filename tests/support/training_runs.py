"""Training runs in one process: the steps of a cluster, without a wire."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from mesh.device import open_mesh
from optimizer.schedules import clip_coefficient, first_moment_decay, gradient_norm, learning_rate
from plane.master_tensors import MasterTensors
from services.config.job import JobConfig
from services.pipeline.exchange import Compute, FinishedPass
from services.tensors.layout import chunk_range
from training.step import TrainingStep
from worker.node_sum import NodeSum


def train(config: JobConfig, steps: int) -> tuple[list[float], npt.NDArray[np.float32]]:
    """Return the losses of a job's first steps on one emulated chip, and the weights after them."""
    losses, plan = [], config.plan()
    with open_mesh((1, 1), backend="emulator", dtype="float32") as mesh:
        step = TrainingStep(config, mesh)
        tensors = MasterTensors(config, step.layout)
        tensors.weights[:] = step.initial_weights()
        chunks = range(step.layout.chunks)
        for number in range(steps):
            for index, entry in enumerate(step.layout.entries):
                step.load(index, tensors.weights[entry.offset : entry.stop])
            total = np.empty(step.layout.elements, np.float32)
            node_sum = NodeSum(step.ranges, total, config.micro_batches, lambda offset: None)

            def add_leaf(
                range_index: int, index: int, compute: Compute, node_sum: NodeSum = node_sum
            ) -> FinishedPass:
                del index
                return node_sum.add_leaf(range_index, compute)

            losses.append(float(np.mean(step.micro_batches(number, 0, config.micro_batches, add_leaf))))
            block_sums = [
                each
                for chunk in chunks
                for each in tensors.stage(chunk, total[slice(*chunk_range(step.layout.elements, chunk))])
            ]
            norm = gradient_norm(block_sums)
            assert math.isfinite(norm)
            tensors.rule.begin(
                learning_rate(plan.schedule, plan.learning_rate, number),
                clip_coefficient(norm, plan.clip_grad_norm),
                beta1=first_moment_decay(plan.schedule, number),
            )
            for chunk in chunks:
                tensors.update(chunk)
        return losses, tensors.weights.copy()
