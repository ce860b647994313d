"""The passes of a simulated worker with a whole model: what its device does for a lease that is no row's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import NonFinite
from services.protocol.file_refs import make_ref
from services.tensors.layout import CHUNK_ELEMENTS
from tests.simulation.job_model import PARAMETER, POISON, SICK, SimulatedJob, key_of, require
from tests.simulation.simulated_device import LeaseState, Task
from worker.core import events as ev

if TYPE_CHECKING:
    from tests.simulation.simulated_worker import SimulatedWorker


def perform_whole(worker: SimulatedWorker, job: SimulatedJob, state: LeaseState) -> Task:
    """Perform a lease of a whole model."""
    lease, random = state.lease, worker.cluster.rng.random
    if lease.phase == pb.INITIALISE:
        yield random()
        worker.report(
            ev.InitialWeightsMade(
                lease.lease, worker.layout or job.layout_ref, {"config.json": make_ref(b"{}")}
            )
        )
        return
    yield from worker.await_weights(state)
    if state.dropped:
        return
    weights = worker.whole_weights(lease)
    indices = range(lease.first, lease.first + lease.count)
    if lease.phase == pb.EVALUATE:
        yield worker.seconds * lease.count * (0.5 + random())
        losses = tuple(job.batch_loss(weights, index) for index in indices)
        worker.failed_in_a_row = 0
        worker.report(ev.LeaseEvaluated(lease.lease, losses))
        return
    seconds = worker.seconds * lease.count * (0.5 + random())
    if job.deadly(lease.step, indices):
        yield seconds * random()
        worker.lose_compute(lease)
        return
    if job.poisoned(lease.step, range(lease.first, lease.first + lease.count)):
        yield seconds * random()
        worker.fail(lease, POISON)
        return
    yield seconds  # A lease that is dropped from here on is still computed and reported.
    key, checksums = _gradients(worker, lease, key_of(job.number, lease.step, weights))
    state.keys[0, job.elements] = key
    if lease.phase == pb.VERIFY:
        worker.report(ev.LeaseComputed(lease.lease, 0.0, 0, checksums))
        return
    losses = tuple(job.loss(lease.step, index) for index in indices)
    cut = int(random() * 2 * job.chunks)
    for ready_from in (cut, 0) if 0 < cut < job.chunks else (0,):
        require(worker.whole_weights(lease) == weights, f"the weights changed under lease {lease.lease}")
        state.ready_from = ready_from * CHUNK_ELEMENTS
        if ready_from:
            ready = ev.NodeReady(lease.lease, state.ready_from)
        else:
            ready = ev.NodeReady(lease.lease, 0, losses, _non_finite(job, lease), job.count(indices))
        worker.report(ready)
        yield worker.seconds * random() * 0.3
        if ready_from and worker.falls_sick():
            worker.fail(lease, SICK)
            return
    worker.report_trained(lease, seconds, checksums)


def _gradients(worker: SimulatedWorker, lease: pb.Lease, key: int) -> tuple[int, tuple[pb.Checksum, ...]]:
    """Return the key of a node's sum, and the checksums that a lease asks for. Those of a lie are unique."""
    draw = worker.cluster.rng
    spoilt = set()
    if worker.lies:
        indices = range(lease.first, lease.first + lease.count)
        spoilt = {index for index in indices if draw.random() < worker.lies}
    checksums = tuple(
        pb.Checksum(
            micro_batch=index,
            crc32c=draw.getrandbits(32) if index in spoilt else hash((key, index)) & 0xFFFFFFFF,
        )
        for index in lease.checksums
    )
    return draw.getrandbits(60) if spoilt else key, checksums


def _non_finite(job: SimulatedJob, lease: pb.Lease) -> tuple[NonFinite, ...]:
    culprit = job.culprit(lease.step)
    if culprit is None or not lease.first <= culprit < lease.first + lease.count:
        return ()
    return (NonFinite(micro_batch=culprit, parameter=PARAMETER),)
