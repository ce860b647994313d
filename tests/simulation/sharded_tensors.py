"""The tensors of a simulated optimizer whose aggregator has shards: opened, copied, and ordered about."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from optimizer.core import events as ev
from protos import plane_pb2 as pb
from tests.simulation.job_model import SimulatedJob
from tests.simulation.shard_links import ShardedPayloads, SimulatedShardLink

if TYPE_CHECKING:
    from tests.simulation.simulated_optimizer import SimulatedOptimizer


class ShardedTensors:
    """Weights and staged sums in shards: in place of `JobTensors`.

    Args:
        optimizer: the optimizer, which is told what is done.
    """

    def __init__(self, optimizer: SimulatedOptimizer) -> None:
        self._optimizer = optimizer
        self._payloads: ShardedPayloads
        self._opening = 0
        self._job = ""  # that is opened, or was last
        self._to_open: set[SimulatedShardLink] = set()
        self._to_write: set[SimulatedShardLink] = set()
        self._checkpoint: tuple[int, ...] | None = None
        self._opened: Callable[[], None] = lambda: None
        self._copy = 0
        self._copying: ev.Snapshot | None = None
        self._copied: dict[int, int] = {}

    def use(self, payloads: ShardedPayloads) -> None:
        """Use the shards of the aggregator in this process."""
        self._payloads = payloads
        payloads.group.on_lost.append(self._lost)
        payloads.group.report_handlers.update(
            {
                pb.PartOpened: self._part_opened,
                pb.CopiedPart: self._part_copied,
                pb.StagedChunk: lambda link, body: self._optimizer.plane_reported(
                    link.stripe, body, link.payload
                ),
                pb.UpdatedPart: lambda link, body: self._optimizer.plane_reported(link.stripe, body),
            }
        )

    # ---- opening a job ----

    def open(self, job: SimulatedJob, weights: tuple[int, ...] | None, opened: Callable[[], None]) -> None:
        """Have the shards allocate a job's chunks, with the weights of a checkpoint; call `opened` then."""
        self._forget()
        if not self._payloads.group.ready:
            return
        self._job, self._checkpoint, self._opened = job.id, weights, opened
        self._opening += 1
        self._to_open = set(self._payloads.links)
        self._payloads.group.send_order(pb.OpenPart(opening=self._opening, job=job.id))

    def _part_opened(self, link: SimulatedShardLink, body: pb.PartOpened) -> None:
        if body.opening != self._opening or link not in self._to_open:
            return
        self._to_open.remove(link)
        if self._to_open:
            return
        if self._checkpoint is None:
            self._opened()
            return
        self._to_write = set(self._payloads.links)
        for each in self._payloads.links:
            weights = dict(enumerate(self._checkpoint))
            own = {chunk: weights[chunk] for chunk in weights if each.stripe.contains(chunk)}
            each.send_weights(self._opening, own)

    def take_tensors(self, link: SimulatedShardLink, number: int, weights: dict[int, int]) -> None:
        """Take what a shard sends apart from its reports: that weights are written, or a copy of its own."""
        if number == -self._opening and link in self._to_write:
            self._to_write.remove(link)
            if not self._to_write:
                self._opened()
        elif number == self._copy and self._copying is not None:
            self._copied |= weights
            chunks = self._optimizer.cluster.jobs[self._copying.job].chunks
            if len(self._copied) == chunks:
                effect, self._copying = self._copying, None
                self._optimizer.copied(effect, tuple(self._copied[each] for each in range(chunks)))

    def send_order(self, order: ev.TensorOrder) -> None:
        """Give the shards an order of the core."""
        if isinstance(order, pb.DropPart) and order.job == self._job:
            self._forget()
        self._payloads.group.send_order(order)

    def _lost(self, reason: str) -> None:
        copying, self._copying = self._copying, None
        self._forget()
        self._optimizer.tensors_lost(copying, reason)

    def _forget(self) -> None:
        self._to_open, self._to_write = set(), set()

    def snapshot(self, effect: ev.Snapshot) -> None:
        """Have each shard copy its weights."""
        self._copy += 1
        self._copying, self._copied = effect, {}
        self._payloads.group.send_order(pb.CopyPart(job=effect.job, copy=self._copy))

    def _part_copied(self, link: SimulatedShardLink, body: pb.CopiedPart) -> None:
        """Report that a shard can't copy what it does not have."""
        effect = self._copying
        if effect is not None and body.copy == self._copy:
            self._copying = None
            self._optimizer.feed(ev.SaveFailed(effect.job, effect.generation, effect.step, body.reason))
