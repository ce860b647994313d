"""The simulated optimizer: tensors are tuples of integers, and its disk is the cluster's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optimizer.core import events as ev
from optimizer.core.optimizer import OptimizerCore
from plane.bookkeeping import AGGREGATOR_SESSION, PlaneCore
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.protocol.hello import HelloExpectations, HelloRefusal, Role, check_hello
from services.protocol.versions import Version
from services.tensors.stripes import Stripe
from tests.simulation import history
from tests.simulation.job_model import CLUSTER, SimulatedJob, SimulationFailed, Sum, require, updated
from tests.simulation.links import Link, is_end
from tests.simulation.process import Process, Queue
from tests.simulation.scenario import CHUNKS_IN_FLIGHT
from tests.simulation.sharded_tensors import ShardedTensors
from tests.simulation.simulated_plane import send_version

if TYPE_CHECKING:
    from tests.simulation.simulated_cluster import SimulatedCluster


class Tensors:
    """State that the optimizer keeps of a job."""

    def __init__(self, job: SimulatedJob) -> None:
        self.job = job
        self.weights: list[int] = [0] * job.chunks
        self.staged: dict[int, Any] = {}
        self.staged_under: dict[int, int] = {}  # by chunk: the generation


class SimulatedOptimizer(Process):
    """One life of the optimizer's process.

    Attributes:
        core: the real optimizer's core.
        tensors: what it has of each job.
        sharded: what it has in place of tensors if they are in shards; None if they are here.
        link: the connection to its aggregator; None if there is none.
    """

    def __init__(self, cluster: SimulatedCluster, number: int) -> None:
        super().__init__(cluster, f"optimizer-{number}")
        self.core: OptimizerCore = cluster.make_core(
            OptimizerCore, name="optimizer", epoch=cluster.disk.obeyed_epoch
        )
        self._epoch = cluster.disk.epoch  # its aggregator, in 2 tiers
        self.tensors: dict[str, Tensors] = {}
        self.sharded = ShardedTensors(self) if cluster.scenario.shards else None
        self.link: Link | None = None
        self._leader = ""
        self._plane = PlaneCore(0, Stripe())  # the real bookkeeping of its plane
        self._sums: dict[str, dict[int, Sum]] = {}  # what planes have reported as staged, by job and chunk
        self._kernel = Queue(self)
        self._disk = Queue(self)

    @property
    def fenced(self) -> bool:
        """Whether the aggregator has been replaced, so that no write of this process counts."""
        return self.cluster.scenario.tiers == 2 and self.cluster.disk.epoch != self._epoch

    # ---- the link ----

    def ordered(self, link: Link, epoch: int, body: Any) -> None:
        """Handle a control message from an aggregator."""
        if not self.alive:
            return
        if is_end(epoch):
            link.ended(body)
        elif isinstance(body, pb.Hello):
            refusal = self._check_hello(body)
            if refusal is not None:
                link.obeyed_epoch = refusal.obeyed_epoch
                link.close(refusal.reason)
                return
            answer = pb.Hello(role="optimizer", name="optimizer", shard_count=1)
            if self.link is not None and self.link is not link:
                self.link.close("another aggregator has taken over")
            link.down_control.send(epoch, answer)
            self.link, self._leader = link, body.incarnation
            self._plane.worker_attends(AGGREGATOR_SESSION)
            self.cluster.obeyed("optimizer", link.ends[1])
            self.feed(ev.Connected(body))
        elif link is self.link:
            self.feed(ev.Ordered(epoch, body))

    def _check_hello(self, hello: pb.Hello) -> HelloRefusal | None:
        leader = self._leader if self.link is not None else ""
        return check_hello(
            hello,
            HelloExpectations("optimizer", Role.AGGREGATOR, self.core.epoch, cluster=CLUSTER, leader=leader),
        )

    def received(self, link: Link, header: ChunkHeader, payload: Any) -> None:
        """Handle a chunk."""
        if link is self.link and self.core.expected_elements(header.job) is not None:
            chunks = [header.index] if self.sharded is None else payload
            self.feed(ev.ChunksArrived(header, chunks), payload)

    def link_lost(self, link: Link) -> None:
        """Handle the loss of the link to the aggregator."""
        if link is self.link:
            self.link = None
            self.feed(ev.Disconnected())

    def thawed(self) -> None:
        """Continue after a freeze."""
        if self.link is not None:
            self.pump(self.link)

    def pump(self, link: Link) -> None:
        """Send the weights that may be sent now."""
        if not self.running or link is not self.link:
            return
        while link.up and link.down_data.in_flight < CHUNKS_IN_FLIGHT:
            header = self._plane.next_weights(AGGREGATOR_SESSION)
            if header is None:
                return
            header.epoch = self.core.epoch
            tensors = self.tensors[header.job]
            content = tensors.weights[header.index]
            expected = tensors.job.weights[header.step][header.index]
            if content != expected:
                raise SimulationFailed(f"weights sent as {header} are not those of step {header.step}")
            link.down_data.send(header, content)

    # ---- the core ----

    def feed(self, event: ev.Input, payload: Any = None) -> None:
        """Give the core an input and carry out its effects."""
        if not self.alive:
            return
        for effect in self.effects(self.core.handle, event):
            self._carry_out(effect, payload)
        if self.link is not None:
            self.pump(self.link)

    def _carry_out(self, effect: ev.Effect, payload: Any) -> None:
        random = self.cluster.rng.random
        seconds = self.cluster.scenario.optimizer_seconds
        tensors = self.tensors.get(ev.job_of(effect))
        if isinstance(effect, plane.UpdatePart):
            self._check_commit(effect)
        match effect:
            case _ if self.sharded is not None and self._carry_out_in_shards(self.sharded, effect):
                pass
            case plane.StageChunks():
                opened = self.core.opened(effect.job)
                assert tensors is not None and opened is not None
                (chunk,), generation = effect.chunks, opened.generation
                require(tensors.staged_under.get(chunk) != generation, f"chunk {chunk} staged twice")
                tensors.staged_under[chunk] = generation
                if effect.initial:
                    tensors.weights[chunk] = payload
                else:
                    pause = random() * seconds / tensors.job.chunks
                    self._kernel.submit(pause, self._stage, tensors, chunk, payload)
            case plane.UpdatePart():
                assert tensors is not None
                tensors.staged_under.clear()
                for chunk in range(tensors.job.chunks):
                    self._kernel.submit(random() * min(seconds, 0.02), self._update, tensors, effect, chunk)
            case ev.ToAggregator():
                if self.link is not None:
                    self.link.down_control.send(self.core.epoch, effect.body)
            case ev.Snapshot():
                self._kernel.submit(random() * seconds, self._snapshot, tensors, effect)
            case ev.RetryLater():
                self.later(effect.seconds, self.feed, ev.RetryDue(effect.job))
            case ev.Refuse():
                if self.link is not None:
                    self.link.close(effect.reason)
                    self.link = None
            case ev.SaveGeneration() if self.fenced:
                self.feed(ev.OperationFailed(effect.job, "another aggregator has taken over"))
            case ev.SaveGeneration():
                require(
                    effect.generation > self.cluster.disk.generations.get(effect.job, 0),
                    f"generation {effect.generation} was given out before",
                )
                self.cluster.disk.generations[effect.job] = effect.generation
            case ev.SaveEpoch():
                require(effect.epoch > self.cluster.disk.obeyed_epoch, f"{effect} after a later one")
                if self.cluster.scenario.tiers == 3:
                    self.cluster.disk.obeyed_epoch = effect.epoch
            case ev.Load():
                self._disk.submit(random() * 0.5, self._load, effect)
            case ev.Allocate():
                job = self.cluster.jobs[effect.job]
                self._open(job)
                self.feed(ev.Allocated(effect.job, effect.layout.sha256, job.elements))
            case plane.MakeWeights():
                assert tensors is not None
                version = Version(effect.generation, effect.step)
                self._plane.weights_ready(effect.job, version, tensors.job.chunks)
            case plane.SendVersion():
                send_version(self._plane, effect)
            case plane.DropPart():
                self.tensors.pop(effect.job, None)
                self._sums.pop(effect.job, None)
                self._plane.drop_job(effect.job)
            case ev.JobBroke():
                raise effect.error

    # ---- shards ----

    def _carry_out_in_shards(self, sharded: ShardedTensors, effect: ev.Effect) -> bool:
        """Carry out an effect on tensors in shards; return False if it is none."""
        match effect:
            case _ if isinstance(effect, ev.TensorOrder):
                if isinstance(effect, plane.DropPart):
                    self._sums.pop(effect.job, None)
                sharded.send_order(effect)
            case ev.Snapshot():
                sharded.snapshot(effect)
            case ev.Allocate():
                job = self.cluster.jobs[effect.job]
                allocated = ev.Allocated(effect.job, effect.layout.sha256, job.elements)
                sharded.open(job, None, lambda: self.feed(allocated))
            case _:
                return False
        return True

    def tensors_lost(self, copying: ev.Snapshot | None, reason: str) -> None:
        """Handle the loss of a shard, and so of all tensors."""
        if copying is not None:
            failed = ev.SaveFailed(copying.job, copying.generation, copying.step, reason)
            self.later(0.0, self.feed, failed)
        self.cluster.contention.may_lose_steps(*self.cluster.jobs)
        self.feed(ev.TensorsLost())

    # ---- slow work ----

    def _load(self, effect: ev.Load) -> None:
        if not self.core.is_loading(effect.job):
            return  # the job was closed in the meantime, or an earlier order has loaded it
        job = self.cluster.jobs[effect.job]
        generation = self.cluster.disk.generations.get(job.id, 0)
        if job.earlier is not None and not self.cluster.disk.checkpoints.get(job.id):
            if self.fenced:
                self.feed(ev.OperationFailed(job.id, "another aggregator has taken over"))
                return
            weights = job.weights[job.first_step]
            self.cluster.disk.write_checkpoint(written_of(job, 0, job.first_step, weights), weights, 0)
        found = self.cluster.disk.newest_checkpoint(job.id, effect.void)
        if not (effect.void or self.fenced):
            self.cluster.contention.loaded(job.id, found[0].step if found else 0)
        if found is None:
            self.feed(ev.Loaded(job.id, job.plan, generation))
            return
        written, weights = found
        loaded = ev.Loaded(job.id, job.plan, generation, job.layout.hash, job.elements, written)
        if self.sharded is not None:
            self.sharded.open(job, weights, lambda: self._loaded_in_shards(loaded))
            return
        self.feed(loaded)
        if self.core.opened(job.id) is not None:
            self._open(job).weights = list(weights)

    def _open(self, job: SimulatedJob) -> Tensors:
        self.tensors[job.id] = tensors = Tensors(job)
        self._plane.open_job(job.id, job.elements, job.plan.wire)
        return tensors

    def _loaded_in_shards(self, loaded: ev.Loaded) -> None:
        """Report a job whose checkpoint is in the shards, unless it was closed in the meantime."""
        if self.core.is_loading(loaded.job):
            self.feed(loaded)
        elif self.sharded is not None:
            self.sharded.send_order(plane.DropPart(job=loaded.job))

    def _stage(self, tensors: Tensors, chunk: int, staged: Sum) -> None:
        tensors.staged[chunk] = staged
        if self.tensors.get(tensors.job.id) is tensors:
            report = plane.StagedChunks(job=tensors.job.id, chunks=[plane.StagedChunk(chunk=chunk)])
            self.plane_reported(Stripe(), report, {chunk: staged})

    def plane_reported(
        self, stripe: Stripe, body: plane.StagedChunks | plane.UpdatedPart, staged: Mapping[int, Sum] = {}
    ) -> None:
        """Give the core a report; with the sums that it is about, which are finite if the step's are."""
        opened = self.core.opened(body.job)
        if isinstance(body, plane.StagedChunks) and opened:
            is_finite = all(self.cluster.jobs[body.job].applied[opened.step : opened.step + 1])
            for each in body.chunks:
                each.block_sums.append(1.0 if is_finite else math.inf)
            self._sums.setdefault(body.job, {}).update(staged)
        self.feed(ev.FromPlane(stripe, body, self.now))

    def _check_commit(self, order: plane.UpdatePart) -> None:
        """Check that what is staged is the sum of the committed step, of all chunks."""
        job, sums = self.cluster.jobs[order.job], self._sums.pop(order.job, {})
        for chunk, staged in sums.items():
            if (staged.chunk, staged.key) != (chunk, job.keys[order.step]):
                raise SimulationFailed(f"chunk {chunk} of step {order.step} is staged as {staged}")
            if not self.fenced:
                covered = history.Covered(job.id, order.generation, order.step, chunk, staged.micro_batches)
                self.cluster.history.add(covered)
        if not self.fenced:
            opened = self.core.opened(order.job)
            assert opened is not None
            self.cluster.committed(order, opened.count)

    def _update(self, tensors: Tensors, effect: plane.UpdatePart, chunk: int) -> None:
        before = tensors.weights[chunk]
        job = tensors.job
        require(
            before == job.weights[effect.step][chunk], f"{effect} of other weights than those of its step"
        )
        if effect.applied:
            tensors.weights[chunk] = updated(before, tensors.staged[chunk].key)
        if self.tensors.get(job.id) is tensors:
            self._plane.weights_ready(job.id, Version(effect.generation, effect.step + 1), chunk + 1)
            self.plane_reported(Stripe(), plane.UpdatedPart(job=job.id, step=effect.step, chunks=chunk + 1))

    def _snapshot(self, tensors: Tensors, effect: ev.Snapshot) -> None:
        if not effect.step:
            tensors.staged_under.clear()
        self.copied(effect, tuple(tensors.weights))

    def copied(self, effect: ev.Snapshot, weights: tuple[int, ...]) -> None:
        """Write a copy of the weights, after checking that they are those of the step."""
        job = self.cluster.jobs[effect.job]
        require(weights == job.weights[effect.step], f"{effect} of other weights than those of its step")
        chance = self.cluster.rng.random()
        self._disk.submit(
            3.0 if chance > 0.97 else chance * 0.3, self._write, effect, weights, 0.9 < chance < 0.95
        )

    def _write(self, effect: ev.Snapshot, weights: tuple[int, ...], fails: bool) -> None:
        job = self.cluster.jobs[effect.job]
        if self.fenced:
            self.feed(
                ev.SaveFailed(effect.job, effect.generation, effect.step, "another aggregator has taken over")
            )
            return
        if effect.step == job.full_disk_at:
            self.cluster.contention.may_lose_steps(effect.job)
            self.feed(ev.SaveFailed(effect.job, effect.generation, effect.step, "disk broken"))
            return
        if fails:
            self.cluster.contention.may_lose_steps(effect.job)
            self.feed(
                ev.SaveFailed(effect.job, effect.generation, effect.step, "disk full", out_of_space=True)
            )
            return
        written = written_of(job, effect.generation, effect.step, weights)
        self.cluster.disk.write_checkpoint(written, weights, job.keep_last)
        self.feed(ev.Saved(written))


def written_of(
    job: SimulatedJob, generation: int, step: int, weights: tuple[int, ...]
) -> pb.CheckpointWritten:
    """Return the message that names a checkpoint."""
    return pb.CheckpointWritten(
        job=job.id,
        generation=generation,
        step=step,
        path=f"{job.id}/step-{step:08d}",
        model_sha256=f"{hash(weights):x}",
    )
