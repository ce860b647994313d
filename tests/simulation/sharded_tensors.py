"""The tensors of a simulated optimizer whose aggregator has shards: opened, copied, and ordered about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optimizer.core import events as ev
from protos import plane_pb2 as pb
from tests.simulation.job_model import SimulatedJob
from tests.simulation.shard_links import ShardedPayloads, SimulatedShardLink

if TYPE_CHECKING:
    from tests.simulation.simulated_optimizer import SimulatedOptimizer


@dataclass
class Opening:
    """The opening of a job whose parts the shards have yet to report.

    Attributes:
        job: its id.
        checkpoint: weights of the checkpoint that it begins with; None for none.
        opened: called at its end.
        to_open: shards that have yet to allocate the job's chunks.
        to_write: shards that have yet to write the weights.
    """

    job: str
    checkpoint: tuple[int, ...] | None
    opened: Callable[[], None]
    to_open: set[SimulatedShardLink]
    to_write: set[SimulatedShardLink] = field(default_factory=set)


class ShardedTensors:
    """Weights and staged sums in shards: in place of `JobTensors`.

    Args:
        optimizer: the optimizer, which is told what is done.
    """

    def __init__(self, optimizer: SimulatedOptimizer) -> None:
        self._optimizer = optimizer
        self._payloads: ShardedPayloads
        self._last_opening = 0
        self._openings: dict[int, Opening] = {}
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
                pb.StagedChunks: lambda link, body: self._optimizer.plane_reported(
                    link.stripe, body, link.payload
                ),
                pb.UpdatedPart: lambda link, body: self._optimizer.plane_reported(link.stripe, body),
            }
        )

    # ---- opening a job ----

    def open(self, job: SimulatedJob, weights: tuple[int, ...] | None, opened: Callable[[], None]) -> None:
        """Have the shards allocate a job's chunks, with the weights of a checkpoint; call `opened` then."""
        self._forget(job.id)
        if not self._payloads.group.ready:
            return
        self._last_opening += 1
        links = set(self._payloads.links)
        self._openings[self._last_opening] = Opening(job.id, weights, opened, to_open=links)
        self._payloads.group.send_order(pb.OpenPart(opening=self._last_opening, job=job.id))

    def _part_opened(self, link: SimulatedShardLink, body: pb.PartOpened) -> None:
        opening = self._openings.get(body.opening)
        if opening is None or link not in opening.to_open:
            return
        opening.to_open.remove(link)
        if opening.to_open:
            return
        if opening.checkpoint is None:
            self._finish(body.opening)
            return
        opening.to_write = set(self._payloads.links)
        for each in self._payloads.links:
            weights = dict(enumerate(opening.checkpoint))
            own = {chunk: weights[chunk] for chunk in weights if each.stripe.contains(chunk)}
            each.send_weights(body.opening, own)

    def _finish(self, number: int) -> None:
        self._openings.pop(number).opened()

    def take_tensors(self, link: SimulatedShardLink, number: int, weights: dict[int, int]) -> None:
        """Take what a shard sends apart from its reports: that weights are written, or a copy of its own."""
        opening = self._openings.get(-number)
        if opening is not None and link in opening.to_write:
            opening.to_write.remove(link)
            if not opening.to_write:
                self._finish(-number)
        elif number == self._copy and self._copying is not None:
            self._copied |= weights
            chunks = self._optimizer.cluster.jobs[self._copying.job].chunks
            if len(self._copied) == chunks:
                effect, self._copying = self._copying, None
                self._optimizer.copied(effect, tuple(self._copied[each] for each in range(chunks)))

    def send_order(self, order: ev.TensorOrder) -> None:
        """Give the shards an order of the core."""
        if isinstance(order, pb.DropPart):
            self._forget(order.job)
        self._payloads.group.send_order(order)

    def _lost(self, reason: str) -> None:
        copying, self._copying = self._copying, None
        self._openings.clear()
        self._optimizer.tensors_lost(copying, reason)

    def _forget(self, job: str) -> None:
        self._openings = {number: each for number, each in self._openings.items() if each.job != job}

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
