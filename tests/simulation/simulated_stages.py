"""The passes of a simulated worker with some stages of a pipeline: what its device does for a lease of a row."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, cast

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import NonFinite
from services.pipeline.schedule import Pass
from services.pipeline.split import StageRun
from services.protocol.file_refs import make_ref
from tests.simulation.job_model import PARAMETER, POISON, SimulatedJob, join_keys, key_of, require
from tests.simulation.pipeline_model import ArrayKind, PassArray, SimulatedPipeline, join_weights
from tests.simulation.row_links import LinkEnd, RowLinks, size_of
from tests.simulation.simulated_device import WAIT, LeaseState, Task
from worker.core import events as ev

if TYPE_CHECKING:
    from tests.simulation.simulated_worker import SimulatedWorker

TAINT = -1
"""Key of what a lying worker adds to an activation's weights by chunk."""

Received = Generator[float, None, PassArray | None]
"""Wait for an array; the result is None if the lease was dropped."""


class StagePasses:
    """The passes of one lease through the stages of one worker.

    Args:
        worker: the worker.
        job: the job.
        state: the lease.
        links: links to the other workers of the row.

    Attributes:
        checksums: checksums of what each pass of a checked micro-batch has put out.
    """

    def __init__(
        self, worker: SimulatedWorker, job: SimulatedJob, state: LeaseState, links: RowLinks
    ) -> None:
        assert job.pipeline is not None
        require(
            state.dropped or links.row == (state.lease.job, state.lease.row),
            f"{worker.title} begins a lease of row {state.lease.row} in row {links.row}",
        )
        self.checksums: list[pb.Checksum] = []
        self._worker = worker
        self._job = job
        self._state = state
        self._links = links
        self.pipeline: SimulatedPipeline = job.pipeline
        self.run: StageRun = links.run
        self._ranges = self.pipeline.ranges_of(links.run)
        self._local: dict[tuple[ArrayKind, Pass], PassArray] = {}
        self._kept: dict[Pass, dict[int, int]] = {}
        self._keys: dict[int, list[int]] = {}  # of each range's gradients so far

    def train(self, seconds: float, complete: Callable[[int], None]) -> Task:
        """Run the forward and backward passes of a lease.

        Args:
            seconds: longest time of a pass.
            complete: is called with each range whose gradient of the lease is complete, the last range first.
        """
        lease = self._state.lease
        schedule = self.pipeline.schedule(lease.count)
        for one in self.pipeline.passes_of(self.run, lease.count):
            in_step = one._replace(micro_batch=lease.first + one.micro_batch)
            received = None
            if schedule.is_fed(one):
                received = yield from self._receive("gradient" if one.is_backward else "activation", in_step)
            if not one.is_backward:
                yield from self._worker.await_pieces(self._state, self.pipeline.loads_of(one.range_index))
            if self._state.dropped:
                return
            yield seconds * self._worker.cluster.rng.random()
            if one.is_backward:
                yield from self._backward(in_step, received)
                if one.micro_batch == lease.count - 1:
                    self._note_key(one.range_index)
                    complete(one.range_index)
            else:
                yield from self._forward(in_step, received)
                self._check_memory(in_step, schedule.in_flight_limit(one.range_index % schedule.stages))
            if self._state.dropped:
                return

    def find_non_finite(self, indices: range) -> tuple[NonFinite, ...]:
        """Return what these stages have found: a NaN of a stage gets into the gradients of all earlier stages."""
        job, step = self._job, self._state.lease.step
        culprit = job.culprit(step)
        if culprit not in indices or self.run.first > hash((step, culprit)) % self.pipeline.stages:
            return ()
        return (NonFinite(micro_batch=culprit, parameter=PARAMETER),)

    def _check_memory(self, one: Pass, limit: int) -> None:
        stages = self.pipeline.stages
        kept = sum(each.range_index % stages == one.range_index % stages for each in self._kept)
        require(kept <= limit, f"{self._worker.title} keeps {kept} activations, expected at most {limit}")

    def _forward(self, one: Pass, received: PassArray | None) -> Task:
        weights = self._pass_weights(one.range_index, received)
        if self._lies():
            weights[TAINT] = self._worker.cluster.rng.getrandbits(60)
        self._kept[one] = weights
        if one.range_index < self.pipeline.ranges - 1:
            self._note_checksum(one, hash(tuple(sorted(weights.items()))))
            yield from self._send("activation", one._replace(range_index=one.range_index + 1), weights)

    def _pass_weights(self, range_index: int, received: PassArray | None) -> dict[int, int]:
        """Return the weights of all ranges up to this one: those received and those on the mesh."""
        before = cast(dict[int, int], received.content) if received is not None else {}
        loads = self.pipeline.loads_of(range_index)
        return join_weights(before, self._worker.weights_of(self._state.lease, loads))

    def _backward(self, one: Pass, received: PassArray | None) -> Task:
        weights = self._kept.pop(one._replace(is_backward=False))
        last = self.pipeline.ranges - 1
        if one.range_index == last:
            every = tuple(weights[chunk] for chunk in range(self._job.chunks))
            key = key_of(self._job.number, self._state.lease.step, every)
            key = hash((key, weights[TAINT])) if TAINT in weights else key
        else:
            assert received is not None
            key = cast(int, received.content)
        self._worker.weights_of(self._state.lease, self.pipeline.loads_of(one.range_index))
        tied = one._replace(range_index=0)
        if one.range_index == 0 and self.pipeline.has_tied_part:
            part = yield from self._receive("tied", tied)
            key = key if part is None else join_keys([key, cast(int, part.content)])
        if self._lies():
            key = self._worker.cluster.rng.getrandbits(60)
        self._keys.setdefault(one.range_index, []).append(key)
        self._note_checksum(one, key)
        if one.range_index > 0:
            yield from self._send("gradient", one._replace(range_index=one.range_index - 1), key)
        if one.range_index == last and self.pipeline.has_tied_part:
            yield from self._send("tied", tied, key)

    def _note_key(self, range_index: int) -> None:
        """Note the key of a range's sum, now that it is complete."""
        borders = self.pipeline.borders[range_index : range_index + 2]
        self._state.keys[borders[0], borders[1]] = join_keys(self._keys[range_index])

    def _lies(self) -> bool:
        """Return whether this worker corrupts the pass that it runs."""
        return self._worker.lies > 0 and self._worker.cluster.rng.random() < self._worker.lies / 2

    def _note_checksum(self, one: Pass, content: int) -> None:
        if one.micro_batch in self._state.lease.checksums:
            place = 2 * self.pipeline.ranges - 1 - one.range_index if one.is_backward else one.range_index
            crc32c = hash((one, content)) & 0xFFFFFFFF
            self.checksums.append(pb.Checksum(micro_batch=one.micro_batch, place=place, crc32c=crc32c))

    def evaluate(self, seconds: float) -> Generator[float, None, list[pb.BatchLoss]]:
        """Pass held-out batches through the stages, and return the losses, which only the last range knows."""
        lease, losses = self._state.lease, []
        for index in range(lease.first, lease.first + lease.count):
            for range_index in self._ranges:
                one = Pass(is_backward=False, range_index=range_index, micro_batch=index)
                received = None
                if range_index:
                    received = yield from self._receive("activation", one)
                yield from self._worker.await_pieces(self._state, self.pipeline.loads_of(range_index))
                if self._state.dropped:
                    return []
                yield seconds * self._worker.cluster.rng.random()
                if self._state.dropped:
                    return []
                weights = self._pass_weights(range_index, received)
                if range_index < self.pipeline.ranges - 1:
                    yield from self._send("activation", one._replace(range_index=range_index + 1), weights)
                else:
                    every = tuple(weights[chunk] for chunk in range(self._job.chunks))
                    losses.append(self._job.batch_loss(every, index))
        return losses

    # ---- arrays ----

    def _end_to(self, range_index: int) -> LinkEnd | None:
        return self._links.end_to(range_index % self.pipeline.stages)

    def _receive(self, kind: ArrayKind, to: Pass) -> Received:
        sender = {
            "activation": to.range_index - 1,
            "gradient": to.range_index + 1,
            "tied": self.pipeline.ranges - 1,
        }[kind]
        end = None if self._state.dropped else self._end_to(sender)
        while not self._state.dropped:
            if end is None:
                array: PassArray | None = self._local.pop((kind, to))
            else:
                array = self._links.take(end, kind, self._state.lease.lease)
            if array is not None:
                expected = (self._state.lease.lease, kind, to)
                if array[:3] == expected:
                    return array
                self._links.take_wrong(self._state, end, f"{self._worker.title} takes {array} for {expected}")
            yield from self._wait()
        return None

    def _send(self, kind: ArrayKind, to: Pass, content: dict[int, int] | int) -> Task:
        array = PassArray(self._state.lease.lease, kind, to, content)
        if self._state.dropped:
            return
        end = self._end_to(to.range_index)
        if end is None:
            self._local[kind, to] = array
            return
        lane = end.sending[kind]
        while not lane.has_room and not self._state.dropped:
            yield from self._wait()
        if not self._state.dropped:
            lane.put(array.lease, array, size_of(array))
            end.pump()

    def _wait(self) -> Task:
        """Wait until something arrives. The lease fails if a worker of the row can't be reached for long."""
        lost = self._links.lost_neighbour()
        if lost and not self._state.failed:
            self._state.failed = True
            self._worker.lose_neighbour(self._state.lease, lost)
        yield WAIT


def perform_in_row(worker: SimulatedWorker, job: SimulatedJob, state: LeaseState) -> Task:
    """Perform this worker's part of a row's lease."""
    lease = state.lease
    passes = StagePasses(worker, job, state, worker.row_links)
    worker.row_links.open_lease(lease.lease)
    state.is_under_way = True
    yield from _run_passes(worker, job, state, passes)
    state.is_under_way = False
    if not state.dropped:
        worker.row_links.close_lease(lease.lease)


def _run_passes(worker: SimulatedWorker, job: SimulatedJob, state: LeaseState, passes: StagePasses) -> Task:
    lease, random = state.lease, worker.cluster.rng.random
    if lease.phase == pb.INITIALISE:
        yield random()
        state.ready_from = 0
        if passes.run.first:
            worker.report(ev.NodeReady(lease.lease, 0))
        else:
            files = {"config.json": make_ref(b"{}")}
            worker.report(ev.InitialWeightsMade(lease.lease, job.layout_ref, files))
        return
    if lease.phase == pb.EVALUATE:
        losses = yield from passes.evaluate(worker.seconds)
        if not state.dropped:
            worker.failed_in_a_row = 0
            worker.report(ev.LeaseEvaluated(lease.lease, tuple(losses)))
        return
    indices = range(lease.first, lease.first + lease.count)
    at_fault = passes.run.first <= hash((job.number, lease.step)) % passes.pipeline.stages < passes.run.stop
    if at_fault and job.deadly(lease.step, indices):
        worker.lose_compute(lease)
        return
    if at_fault and job.poisoned(lease.step, indices):
        worker.fail(lease, POISON)
        return
    yield from passes.train(worker.seconds, lambda lowest: _note_complete(worker, passes, state, lowest))
    if state.dropped:
        return
    if lease.phase == pb.VERIFY:
        worker.report(ev.LeaseComputed(lease.lease, 0.0, 0, tuple(passes.checksums)))
        return
    is_last = passes.run.stop == passes.pipeline.stages
    losses = tuple(job.loss(lease.step, index) for index in indices) if is_last else ()
    state.ready_from = 0
    count = job.count(indices) if is_last else 0
    worker.report(ev.NodeReady(lease.lease, 0, losses, passes.find_non_finite(indices), count))
    worker.report_trained(lease, worker.seconds * lease.count, tuple(passes.checksums))


def _note_complete(worker: SimulatedWorker, passes: StagePasses, state: LeaseState, lowest: int) -> None:
    """Report that the gradients of a range and of all later ones are complete, which may be left out."""
    if state.lease.phase == pb.TRAIN and worker.cluster.rng.random() < 0.5:
        state.ready_from = passes.pipeline.borders[lowest]
        if state.ready_from > passes.pipeline.gradients_of(passes.run)[0].offset:
            worker.report(ev.NodeReady(state.lease.lease, state.ready_from))
