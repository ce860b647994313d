"""Computes leases on the device thread: training, verification, evaluation, and the initial weights.

A lease that is dropped ends between two micro-batches, or where it waits for weights.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from native import crc32c
from plane.lease_sums import LeaseSums
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import NonFinite
from services.corpora.token_file import TokenFileDamaged
from services.errors import Failed, TiermeshError, describe_internal_error
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.pipeline.exchange import LocalExchange, PassExchange, WrongArray
from services.protocol.non_finite import MAX_REPORTED_MICRO_BATCHES
from services.runtime.metrics import WorkerMetrics
from services.tensors.kernels.arithmetic import Float32Array
from worker.compute_process import ProcessLost, RequestFailed
from worker.core import events as ev
from worker.device_watch import DeviceWatch
from worker.file_exchange import ModelFiles
from worker.job_on_mesh import JobOnMesh
from worker.lease_work import LeaseWork, Sum
from worker.observed_exchange import ObservedExchange
from worker.row_exchange import LeaseDropped, NeighbourLost, OpenExchange, RowExchange
from worker.weight_loader import WeightInbox

log = logging.getLogger("tiermesh.worker")


class NotRepeatable(Failed):
    """A process of a user gives other bits when it computes a lease again."""


class _Bits(NamedTuple):
    """What two computations of a lease are compared by.

    Attributes:
        losses: losses of the micro-batches.
        crc32c: CRC-32C of the sum of their gradients.
    """

    losses: list[float]
    crc32c: int

    @classmethod
    def of(cls, result: Sum, values: Float32Array) -> _Bits:
        """Return those of a lease's sum."""
        return cls(result.losses, crc32c.value(values.view(np.uint8)))


@dataclass
class _LeaseRun:
    """The lease that is being computed.

    Attributes:
        job: the job on the mesh.
        lease: the aggregator's message.
        fetch_seconds: time spent until the weights that it needed were on the mesh.
        stage_seconds: time spent waiting for other stages' workers.
        non_finite: micro-batches whose gradients are not finite.
    """

    job: JobOnMesh
    lease: pb.Lease
    fetch_seconds: float = 0.0
    stage_seconds: float = 0.0
    non_finite: list[NonFinite] = field(default_factory=list)


class LeaseRunner:
    """Runner that computes one lease after another and keeps their sums until they are dropped.

    Args:
        feed: callback that passes the core an input, or takes the files that describe a model.
        metrics: metrics of this worker.
        sums: the sums of leases.
        inbox: weights that have arrived and are not on the mesh yet.
        load_arrived: callback that puts the inbox's weights on the mesh.
        report_damaged: callback that tells the core, for a job's id, that a file of token ids is damaged on this host.
        open_exchange: opens the exchange of a lease's arrays with the other workers of its row.
        clock: monotonic clock in seconds.
        watch: told what the device thread does.
        patience_seconds: time that a lease waits for weights before the log says so. It goes on waiting until
            it is dropped, because the link breaks, newer weights come or the aggregator revokes it.
    """

    def __init__(
        self,
        feed: Callable[[ev.Input | ModelFiles], None],
        metrics: WorkerMetrics,
        *,
        sums: LeaseSums,
        inbox: WeightInbox,
        load_arrived: Callable[[], None],
        report_damaged: Callable[[str, TokenFileDamaged], None],
        open_exchange: OpenExchange,
        clock: Callable[[], float],
        watch: DeviceWatch,
        patience_seconds: float,
    ) -> None:
        self._feed = feed
        self._metrics = metrics
        self._sums = sums
        self._inbox = inbox
        self._load_arrived = load_arrived
        self._report_damaged = report_damaged
        self._open_exchange = open_exchange
        self._clock = clock
        self._watch = watch
        self._patience_seconds = patience_seconds
        self._run: _LeaseRun | None = None
        self._tried: JobOnMesh | None = None  # external job of which a lease was computed twice
        self._exchange: tuple[int, RowExchange] | None = None  # that of the lease under way, with the lease
        self._accepted: set[int] = set()  # not dropped yet
        self._dropped: set[int] = set()  # not forgotten yet

    # ---- called on the event loop ----

    def accept(self, lease: int) -> None:
        """Note a lease that will be run."""
        self._accepted.add(lease)

    def drop(self, lease: int) -> None:
        """End a lease that is under way or waits; `forget` must follow on the device thread."""
        self._accepted.discard(lease)
        self._dropped.add(lease)
        self._wake()

    def drop_all(self) -> None:
        """End what is under way and what waits."""
        self._dropped.update(self._accepted)
        self._wake()

    def _wake(self) -> None:
        """Wake the lease under way where it waits, if it was dropped."""
        self._inbox.wake()
        under_way = self._exchange
        if under_way is not None and under_way[0] in self._dropped:
            under_way[1].drop()

    # ---- called on the device thread ----

    def run(self, job: JobOnMesh, lease: pb.Lease) -> None:
        """Compute a lease and report to the core how it ended."""
        if lease.lease in self._dropped:
            return
        run = self._run = _LeaseRun(job, lease)
        try:
            match lease.phase:
                case pb.TRAIN:
                    with self._watch.doing(pb.COMPUTE_GRADIENTS):
                        self._train(run)
                case pb.VERIFY:
                    with self._watch.doing(pb.REPEAT_GRADIENTS):
                        self._verify(run)
                case pb.EVALUATE:
                    with self._watch.doing(pb.EVALUATE_BATCHES):
                        self._evaluate(run)
                case _:
                    self._make_initial_weights(run)
        except LeaseDropped:
            return  # the core dropped it
        except TokenFileDamaged as error:
            self._report_damaged(job.job, error)
        except NotRepeatable as error:
            self._feed(ev.LoadFailed(job.job, str(error)))
        except NeighbourLost as lost:
            log.error("lease %d: worker %s is lost: %s", lease.lease, lost.neighbour, lost)
            self._feed(ev.LeaseFailed(lease.lease, str(lost), lost.neighbour))
        except Exception as error:
            reason, death = describe_failure(error), describe_death(error)
            log.error("lease %d: %s", lease.lease, reason)
            too_large = job.stages is not None and is_memory_full(error)
            self._feed(ev.LeaseFailed(lease.lease, death or reason, too_large=too_large, died=bool(death)))
        finally:
            self._run = None

    def forget(self, lease: int) -> None:
        """Free the sum of a dropped lease."""
        self._sums.retire(lease)
        self._dropped.discard(lease)

    def clear(self) -> None:
        """Free all sums: the job is over."""
        self._sums.clear()
        self._tried = None

    def fetch(self, entry: int) -> None:
        """Wait until the parameter of a layout entry is on the mesh; the lease under way is about to use it.

        Raises:
            LeaseDropped: the lease was dropped.
        """
        run = self._run
        assert run is not None
        lease, weights = run.lease.lease, run.job.weights
        started = self._clock()
        while True:
            self._load_arrived()
            if self._is_dropped():
                raise LeaseDropped(f"lease {lease}: dropped while it waited for weights")
            if weights.has(entry):
                break
            with (
                self._watch.waiting(f"chunk {weights.missing_chunk} of the weights"),
                timeline.span("device", "wait for weights", job=run.job.job, chunk=weights.missing_chunk),
            ):
                arrived = self._inbox.wait(self._is_dropped, self._patience_seconds)
            if not arrived:
                log.warning(
                    "job %s: lease %d has waited %.0f s for chunk %d of its weights from the aggregator",
                    run.job.job, lease, self._clock() - started, weights.missing_chunk,
                )  # fmt: skip
        run.fetch_seconds += self._clock() - started

    def note_non_finite(self, index: int, parameter: str) -> None:
        """Note that a micro-batch of the lease under way has a gradient that is not finite."""
        run = self._run
        assert run is not None
        if run.lease.phase != pb.TRAIN:
            return  # the worker that computed this micro-batch for its sum reports it
        if len(run.non_finite) >= MAX_REPORTED_MICRO_BATCHES:
            return
        run.non_finite.append(NonFinite(micro_batch=index, parameter=parameter))
        log.warning(
            "job %s: step %d: the gradient of micro-batch %d is not finite, first that of %s",
            run.job.job, run.lease.step + 1, index, parameter,
        )  # fmt: skip

    def _is_dropped(self) -> bool:
        return self._run is not None and self._run.lease.lease in self._dropped

    def _make_initial_weights(self, run: _LeaseRun) -> None:
        step, lease = run.job.step, run.lease.lease
        with self._watch.doing(pb.MAKE_WEIGHTS):
            self._sums.keep(lease, step.initial_weights(), run.job.share.parts)
        if run.job.stages is not None and run.job.stages.first > 0:
            self._feed(ev.NodeReady(lease, 0))  # the first stage's worker describes the model
        else:
            with self._watch.doing(pb.DESCRIBE_MODEL):
                self._feed(ModelFiles.make(lease, step.layout.dumps(), step.checkpoint_files()))

    def _train(self, run: _LeaseRun) -> None:
        job, lease, parts = run.job, run.lease, run.job.share.parts
        reported = len(parts)  # the core knows that pieces from this place on are computed

        def report_ready(index: int) -> None:
            nonlocal reported
            place = parts.place_from(index)
            if place < reported and index > 0:
                reported = place
                timeline.mark("device", "gradient ready", lease.step, job=job.job, chunk=parts[place].chunk)
                self._feed(ev.NodeReady(lease.lease, parts[place].offset))

        in_row = job.stages is not None
        lease_sum = self._sums.borrow(lease.lease, parts, job.gradient_bytes, in_row=in_row)
        is_trial = job.is_external and self._tried is not job
        first = self._compute_first(run, lease_sum.values) if is_trial else None
        job.step.take_pass_seconds()  # those of passes without a sum
        started = self._clock()
        result = self._work(run).sum(lease_sum.values, report_ready if first is None else _report_nothing)
        seconds = self._clock() - started - run.fetch_seconds - run.stage_seconds
        if first is not None:
            self._compare(run, first, _Bits.of(result, lease_sum.values))
        timeline.mark("device", "gradient ready", lease.step, job=job.job, chunk=parts[0].chunk)
        hit_failpoint("worker.gradient-ready")
        self._feed(ev.NodeReady(lease.lease, 0, tuple(result.losses), tuple(run.non_finite), result.count))
        tokens = lease.count * job.step.tokens_per_micro_batch
        has_losses = bool(result.losses)  # as one worker of a row, which counts for all of them
        self._metrics.count_computed(
            job.job, micro_batches=lease.count, tokens=tokens if has_losses else 0, seconds=seconds
        )
        self._metrics.count_wait_for_weights(job.job, run.fetch_seconds)
        self._report_stages(run)
        job.meter.step(lease.count)
        if has_losses:
            self._metrics.set_rates(job.job, *job.meter.get_metrics())
        self._feed(ev.LeaseComputed(lease.lease, seconds, tokens, tuple(result.checksums)))

    def _compute_first(self, run: _LeaseRun, scratch: Float32Array) -> _Bits:
        """Compute a lease that will be computed again, before anything of it is reported."""
        bits = _Bits.of(self._work(run).sum(scratch, _report_nothing), scratch)
        run.fetch_seconds = 0.0
        run.non_finite.clear()
        return bits

    def _compare(self, run: _LeaseRun, first: _Bits, second: _Bits) -> None:
        """Compare two computations of the first lease of a process's code.

        Raises:
            NotRepeatable: they differ, and the job is exact.
        """
        job = self._tried = run.job
        difference = _describe_difference(run.lease, first, second)
        if not difference:
            return
        text = f"the process gives other bits when it computes a lease again: {difference}"
        if job.config.exact:
            raise NotRepeatable(f"{text}; make its code deterministic, or submit the job with exact: false")
        self._feed(ev.Printed(job.job, [f"{text}; the job accepts it (exact: false)"]))

    def _report_stages(self, run: _LeaseRun) -> None:
        """Report the times and the memory of a worker that computes a pipeline by its stages."""
        job = run.job
        if job.step.all_ranges == 1:
            return
        forward_seconds, backward_seconds = job.step.take_pass_seconds()
        self._metrics.count_passes(
            job.job,
            forward_seconds=max(0.0, forward_seconds - run.fetch_seconds),
            backward_seconds=backward_seconds,
            waited_seconds=run.stage_seconds,
        )
        for stage, kept_bytes in job.step.activation_bytes.items():
            self._metrics.set_activation_memory(job.job, stage, kept_bytes)

    def _verify(self, run: _LeaseRun) -> None:
        """Compute micro-batches only for their checksums: they enter no sum and no metric."""
        gradient = np.empty(run.job.share.parts.elements, np.float32)
        checksums = self._work(run).verify(gradient)
        hit_failpoint("worker.check")
        self._feed(ev.LeaseComputed(run.lease.lease, 0.0, 0, tuple(checksums)))

    def _evaluate(self, run: _LeaseRun) -> None:
        losses = self._work(run).evaluate()
        self._feed(ev.LeaseEvaluated(run.lease.lease, tuple(losses)))

    def _work(self, run: _LeaseRun) -> LeaseWork:
        """Return how a lease is computed."""
        job = run.job
        exchange = (
            partial(self._exchange_arrays, run) if job.is_part else lambda: nullcontext(LocalExchange())
        )
        return LeaseWork(job.step, run.lease, exchange, self._check_dropped)

    @contextmanager
    def _exchange_arrays(self, run: _LeaseRun) -> Iterator[PassExchange]:
        opened = self._open_exchange(run.lease, run.job.config, run.job.step.array_sizes)
        exchange = ObservedExchange(opened, run.lease.job, run.lease.step, self._clock, self._watch)
        self._exchange = run.lease.lease, exchange
        try:
            self._check_dropped()  # `drop` did not see the exchange before
            yield exchange
        except WrongArray as wrong:
            raise NeighbourLost(exchange.sender_of(wrong.kind), str(wrong)) from wrong
        finally:
            self._exchange = None
            exchange.close()
            run.stage_seconds += exchange.waited_seconds

    def _check_dropped(self) -> None:
        self._watch.advance()
        if self._is_dropped():
            raise LeaseDropped("dropped while it was computed")
        hit_failpoint("worker.pass")


def _report_nothing(index: int) -> None:
    """Report no part of a sum that is not compared yet."""


def _describe_difference(lease: pb.Lease, first: _Bits, second: _Bits) -> str:
    """Return what differs between two computations of a lease; empty if nothing does."""
    losses = zip_longest(first.losses, second.losses)
    for micro_batch, (before, after) in enumerate(losses, lease.first):
        if repr(before) != repr(after):
            return f"loss of micro-batch {micro_batch} of step {lease.step}: {before!r}, then {after!r}"
    if first.crc32c == second.crc32c:
        return ""
    micro_batches = f"{lease.first} to {lease.first + lease.count - 1}"
    return (
        f"gradient of micro-batches {micro_batches} of step {lease.step}: CRC-32C {first.crc32c:08x}, then "
        f"{second.crc32c:08x}"
    )


def describe_failure(error: Exception) -> str:
    """Return what went wrong on the device thread, in one line for people."""
    return str(error) if isinstance(error, TiermeshError) else describe_internal_error(error)


def describe_death(error: Exception) -> str:
    """Return of what the compute process died, in one line for people; empty if it did not."""
    return error.reason if isinstance(error, ProcessLost) and error.died else ""


def is_memory_full(error: Exception) -> bool:
    """Return whether the chips have too little memory."""
    return isinstance(error, RequestFailed) and error.is_memory
