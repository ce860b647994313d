"""The tensors of a simulated optimizer whose aggregator has shards: orders to them, and what they report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from optimizer.core import events as ev
from optimizer.staged_sums import StagedSums
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.protocol.versions import Version
from tests.simulation.job_model import SimulatedJob
from tests.simulation.shard_links import ShardedPayloads, SimulatedShardLink

if TYPE_CHECKING:
    from tests.simulation.simulated_optimizer import SimulatedOptimizer


class ShardedTensors:
    """Weights and staged sums in shards: in place of a `TensorStore`.

    Args:
        optimizer: the optimizer, which is told what is done.
    """

    def __init__(self, optimizer: SimulatedOptimizer) -> None:
        self._optimizer = optimizer
        self._payloads: ShardedPayloads
        self._job: SimulatedJob | None = None
        self._opening = 0
        self._to_open: set[SimulatedShardLink] = set()
        self._to_write: set[SimulatedShardLink] = set()
        self._checkpoint: tuple[int, ...] | None = None
        self._opened: Callable[[], None] = lambda: None
        self._staged: StagedSums[Any] = StagedSums()
        self._measuring: ev.Measure | None = None
        self._updating: ev.Update | None = None
        self._updated: Counter[SimulatedShardLink] = Counter()
        self._reported = 0
        self._published: Version | None = None
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
                pb.StagedChunk: self._chunk_staged,
                pb.UpdatedPart: self._part_updated,
            }
        )

    # ---- opening a job ----

    def open(self, job: SimulatedJob, weights: tuple[int, ...] | None, opened: Callable[[], None]) -> None:
        """Have the shards allocate a job's chunks, with the weights of a checkpoint; call `opened` then."""
        self._forget()
        if not self._payloads.group.ready:
            return
        self._job, self._checkpoint, self._opened = job, weights, opened
        self._opening += 1
        self._to_open = set(self._payloads.links)
        self._payloads.group.send_to_all(pb.OpenPart(opening=self._opening, job=job.id))

    def _part_opened(self, link: SimulatedShardLink, body: pb.PartOpened) -> None:
        if body.opening != self._opening or link not in self._to_open:
            return
        self._to_open.remove(link)
        if self._to_open:
            return
        if self._checkpoint is None:
            self._finish_opening()
            return
        self._to_write = set(self._payloads.links)
        for each in self._payloads.links:
            weights = dict(enumerate(self._checkpoint))
            own = {chunk: weights[chunk] for chunk in weights if each.stripe.contains(chunk)}
            each.send_weights(self._opening, own)

    def _finish_opening(self) -> None:
        self._staged.reset()
        self._opened()

    def take_tensors(self, link: SimulatedShardLink, number: int, weights: dict[int, int]) -> None:
        """Take what a shard sends apart from its reports: that weights are written, or a copy of its own."""
        if number == -self._opening and link in self._to_write:
            self._to_write.remove(link)
            if not self._to_write:
                self._finish_opening()
        elif number == self._copy and self._copying is not None:
            self._copied |= weights
            chunks = self._optimizer.cluster.jobs[self._copying.job].chunks
            if len(self._copied) == chunks:
                effect, self._copying = self._copying, None
                self._optimizer.copied(effect, tuple(self._copied[each] for each in range(chunks)))

    def drop(self) -> None:
        """Have the shards forget the job."""
        self._forget()
        self._payloads.group.send_to_all(pb.DropPart())

    def _lost(self, reason: str) -> None:
        copying, self._copying = self._copying, None
        self._forget()
        self._optimizer.tensors_lost(copying, reason)

    def _forget(self) -> None:
        self._job = self._measuring = self._updating = self._published = None
        self._to_open, self._to_write = set(), set()
        self._staged.clear()

    # ---- a step ----

    def stage(self, chunk: int, *, initial: bool) -> None:
        """Have the shard of a chunk stage its finished sum, or store it as initial weights."""
        if not initial:
            self._staged.note_order(chunk)
        self._payloads.group.link_of_chunk(chunk).send_order(pb.StageChunk(chunk=chunk, initial=initial))

    def unstage(self) -> None:
        """Forget what is staged; the next chunks overwrite it."""
        self._staged.clear()

    def _chunk_staged(self, link: SimulatedShardLink, body: pb.StagedChunk) -> None:
        if self._job is None:
            return
        self._staged.note_report(body.chunk, link.payload)
        self._measure_if_staged()

    def measure(self, effect: ev.Measure) -> None:
        """Measure the gradient once all shards have staged it."""
        self._measuring = effect
        self._measure_if_staged()

    def _measure_if_staged(self) -> None:
        effect, job = self._measuring, self._job
        staged = self._staged.take(job.chunks) if effect is not None and job is not None else None
        if effect is not None and job is not None and staged is not None:
            self._measuring = None
            self._optimizer.later(0.0, self._optimizer.measure, job, dict(enumerate(staged)), effect)

    def update(self, effect: ev.Update, generation: int) -> None:
        """Have each shard update its chunks."""
        self._updating, self._updated, self._reported = effect, Counter(), 0
        self._published = Version(generation, effect.step + 1)
        self._payloads.group.send_to_all(
            pb.UpdatePart(job=effect.job, generation=generation, step=effect.step, applied=effect.applied)
        )

    def _part_updated(self, link: SimulatedShardLink, body: pb.UpdatedPart) -> None:
        effect, job = self._updating, self._job
        if effect is None or job is None or body.step != effect.step:
            return
        self._updated[link] = body.chunks
        while self._reported < job.chunks:
            owner: Any = self._payloads.group.link_of_chunk(self._reported)
            if self._updated[owner] <= owner.stripe.to_local(self._reported):
                return
            self._reported += 1
            self._optimizer.feed(ev.Updated(effect.job, effect.step, self._reported - 1))
        self._updating = None

    def publish(self, header: ChunkHeader) -> None:
        """Have the shards make the weights of this version ready to be sent, unless they have done so."""
        version = Version(header.generation, header.step)
        if self._published != version:
            self._published = version
            self._payloads.group.send_to_all(
                pb.MakeWeights(job=header.job, generation=version.generation, step=version.step)
            )

    def snapshot(self, effect: ev.Snapshot) -> None:
        """Have each shard copy its weights."""
        self._copy += 1
        self._copying, self._copied = effect, {}
        self._payloads.group.send_to_all(pb.CopyPart(copy=self._copy))
