"""The interface of an optimizer's tensor store: the engine's own process or its shards hold the tensors.

The engine calls the store and the store calls back, all on the event loop. A store carries calls out in the order in
which they come: a snapshot requested after an update contains all of that update and nothing of the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from optimizer.core import events as ev
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints.format import (
    Checkpoint,
)
from services.config.job import JobConfig
from services.errors import TiermeshError, describe_internal_error, is_out_of_space
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

log = logging.getLogger("tiermesh.optimizer")

Save: TypeAlias = "Callable[[Float32Array, Mapping[str, NDArray[Any]]], None]"
"""Callback that queues copies of the weights, [elements] float32, and of the rule's state for writing; any thread."""


class TensorStoreLost(TiermeshError):
    """Loss of the tensors before a call was carried out. The core gets TensorsLost for it."""


@dataclass(frozen=True)
class TensorStoreCallbacks:
    """Callbacks of a store, called on the event loop but never from within a call to the store.

    Attributes:
        report: called with each input for the optimizer's core.
        updated: called when the new weights of a chunk can be sent.
    """

    report: Callable[[ev.Measured | ev.SaveFailed | ev.OperationFailed], None]
    updated: Callable[[ev.Updated], None]


class TensorStore(Protocol):
    """Weights, staged gradient and update rule state of the open job."""

    async def open(self, job: str, config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> None:
        """Replace the tensors by those of a checkpoint, or by zeros if it is None.

        Raises:
            Refused: the checkpoint's state is not that of this job's update rule.
            TensorStoreLost: the store was lost in the meantime.
        """

    def drop(self) -> None:
        """Free the tensors."""

    def stage(self, chunk: int, values: Float32Array | None) -> None:
        """Stage a chunk of the step's sum.

        Args:
            chunk: index of the chunk.
            values: [elements of the chunk] float32; None if the store has it already.
        """

    async def wait_for_room(self) -> None:
        """Wait until few chunks wait to be staged or stored.

        The caller must hand over its chunk before it awaits anything else.
        """

    def unstage(self) -> None:
        """Discard the staged chunks; all of them are staged again before `measure`."""

    def store_initial(self, chunk: int, values: Float32Array | None) -> None:
        """Store a chunk of initial weights; arguments as for `stage`."""

    def measure(self, effect: ev.Measure) -> None:
        """Measure the staged gradient and report Measured."""

    def update(self, effect: ev.Update, header: ChunkHeader) -> None:
        """Update all weights, with a callback for each chunk in layout order.

        Args:
            effect: the update.
            header: header of the new weights, without the fields of one chunk.
        """

    async def publish(self, header: ChunkHeader) -> None:
        """Encode the current weights of a chunk again, so that they can be sent.

        Raises:
            Failed: a weight does not fit the wire type.
        """

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Copy weights and state and pass them to `save`; report SaveFailed if they can't be copied."""

    def close(self) -> None:
        """Stop the store's threads; called on any thread."""


def to_operation_failed(job: str, error: Exception) -> ev.OperationFailed:
    """Return the core's input for an operation of a job that raised `error`."""
    return ev.OperationFailed(job, reason_of(error))


def to_save_failed(effect: ev.Snapshot, error: Exception) -> ev.SaveFailed:
    """Return the core's input for a snapshot whose copy or write raised `error`."""
    return ev.SaveFailed(effect.job, effect.generation, effect.step, reason_of(error), is_out_of_space(error))


def reason_of(error: Exception) -> str:
    """Return an error's text for people; an unexpected error is logged with its traceback."""
    if isinstance(error, TiermeshError):
        return str(error)
    log.error("%s", describe_internal_error(error), exc_info=error)
    return describe_internal_error(error)
