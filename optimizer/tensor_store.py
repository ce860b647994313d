"""Where an optimizer's tensors live: in its own process (here.py), or spread over several.

The engine asks, a home carries out; asked and told is on the event loop. Orders are carried out in the order in which
they are given: a snapshot asked for after an update sees all of it and nothing of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from numpy.typing import NDArray

from optimizer.core import events as ev
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints import Checkpoint
from services.config.job import JobConfig
from services.errors import TiermeshError
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

Save: TypeAlias = "Callable[[Float32Array, Mapping[str, NDArray[Any]]], None]"
"""Has copies of weights, [elements] float32, and rule state put on the disk, without waiting; on any thread."""


class TensorStoreLost(TiermeshError):
    """What was asked for can't be done: the tensors are lost, which is told of as TensorsLost."""


@dataclass(frozen=True)
class TensorStoreEvents:
    """What a home tells; called on the event loop, never from within a call to the home.

    Attributes:
        tell: an input for the optimizer's core.
        updated: a chunk has been updated, and its new weights can be sent.
    """

    tell: Callable[[ev.Measured | ev.SaveFailed | ev.OperationFailed], None]
    updated: Callable[[ev.Updated], None]


class TensorStore(Protocol):
    """Weights, staged gradient and rule state of the job that is open."""

    async def open(self, job: str, config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> None:
        """Make room for a layout: all zero, or as in a checkpoint. What was held before is gone.

        Raises:
            Refused: the checkpoint is not of this job's optimizer.
            TensorStoreLost: the home was lost meanwhile.
        """

    def drop(self) -> None:
        """Forget the tensors."""

    def stage(self, chunk: int, values: Float32Array | None) -> None:
        """Take a chunk of the step's sum, [elements] float32; None: the home holds it already."""

    async def room(self) -> None:
        """Wait until few enough chunks wait to be staged or stored; whoever brings one then must do so at once."""

    def unstage(self) -> None:
        """Forget what is staged: all of it is staged again before it is measured."""

    def store_initial(self, chunk: int, values: Float32Array | None) -> None:
        """Take a chunk of initial weights, as `stage` takes gradients."""

    def measure(self, effect: ev.Measure) -> None:
        """Measure the staged gradient, then tell with Measured."""

    def update(self, effect: ev.Update, header: ChunkHeader) -> None:
        """Update all weights, telling of each chunk in order, which can then be sent; `header` of what is sent."""

    async def publish(self, header: ChunkHeader) -> None:
        """Have a chunk of the weights, as they are, ready to be sent.

        Raises:
            Failed: the wire type can't hold them.
        """

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Copy weights and state, and have them saved; tells with SaveFailed where that can't be begun."""

    def close(self) -> None:
        """Stop what threads there are; called on any thread."""
