"""Orders on a plane's tensors, carried out on its kernel thread. An error of one fails its job, not the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeAlias

from google.protobuf.message import Message

from plane.errors import reason_of
from plane.master_tensors import MasterTensors
from plane.order_thread import Steps
from plane.plane_tensors import Arrays, PlaneTensors, WeightsReady
from plane.streams.newest_weights import NewestWeights
from protos import plane_pb2 as pb
from services.errors import Refused
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import OptimizerMetrics
from services.tasks import start_call
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe

TensorOrder: TypeAlias = (
    pb.OpenPart | pb.DropPart | pb.UpdatePart | pb.MakeWeights | pb.CopyPart | pb.DropCopy
)
"""Orders on tensors, but for `StageChunks`."""


class TensorOrders:
    """The tensors of the open jobs, and what orders do to them.

    The tensors of a job are allocated on a thread of their own, since that takes seconds for a large model.

    Args:
        stripe: chunks of the plane.
        newest: receives new weights, ready to be sent.
        incarnation: incarnation of this process.
        metrics: metrics of updates; None if the optimizer's core is in this process and counts them.
        read_layout: returns the layout of the job that an OpenPart names; called on the allocating thread.
        fill: called there with each OpenPart and its tensors, to fill them from a checkpoint (Refused).
        jobs_change: called when a job's tensors are dropped, and so before they are allocated, with its id and those of
            all jobs whose tensors are to be here, the one that was opened last at the end.
        report: called with each report.
        copied: called with an order and the arrays of the copy for a checkpoint.
        drop_copy: called with the order to free a copy that nobody needs.
        opened: called with an order to open a job and its tensors.
        dropped: called with the id of a job when its tensors are dropped.
        weights_ready: called when a chunk can be sent, and whether it was just updated.
    """

    def __init__(
        self,
        *,
        stripe: Stripe,
        newest: NewestWeights,
        incarnation: str,
        metrics: OptimizerMetrics | None,
        read_layout: Callable[[pb.OpenPart], Layout],
        fill: Callable[[pb.OpenPart, MasterTensors], None],
        jobs_change: Callable[[str, Sequence[str]], None],
        report: Callable[[Message], None],
        copied: Callable[[pb.CopyPart, Arrays], None],
        drop_copy: Callable[[pb.DropCopy], None],
        opened: Callable[[pb.OpenPart, PlaneTensors], None],
        dropped: Callable[[str], None],
        weights_ready: Callable[[WeightsReady, bool], None],
    ) -> None:
        self._stripe = stripe
        self._newest = newest
        self._incarnation = incarnation
        self._metrics = metrics
        self._read_layout = read_layout
        self._fill = fill
        self._jobs_change = jobs_change
        self._report = report
        self._copied = copied
        self._drop_copy = drop_copy
        self._opened = opened
        self._dropped = dropped
        self._weights_ready = weights_ready
        self._allocating = ThreadPoolExecutor(1, "allocate")
        self._tensors: dict[str, PlaneTensors] = {}  # by job
        self._openings: dict[
            str, int
        ] = {}  # number of each job's newest OpenPart, whether or not it succeeded

    def close(self) -> None:
        """Stop the allocating thread behind what it does now."""
        self._allocating.shutdown(wait=False, cancel_futures=True)

    def carry_out(self, order: TensorOrder) -> Steps:
        """Carry out an order, or report that it failed."""
        try:
            yield from self._carry_out(order)
        except CancelledError:
            pass  # the plane is broken or closed
        except Exception as error:
            self._broke(order.job, error)

    def stage(self, order: pb.StageChunks, chunk: int, finished: Future[Float32Array] | None) -> None:
        """Stage the finished sum of a chunk, or store it as initial weights.

        Args:
            order: the order.
            chunk: index of one of its chunks.
            finished: the sum, unless it was cancelled; None if there is none.
        """
        try:
            self._stage(order, chunk, finished)
        except CancelledError:
            pass  # the plane is broken or closed
        except Exception as error:
            self._broke(order.job, error)

    def _broke(self, job: str, error: Exception) -> None:
        self._report(pb.PartBroke(job=job, opening=self._openings.get(job, 0), reason=reason_of(error)))

    def _stage(self, order: pb.StageChunks, chunk: int, finished: Future[Float32Array] | None) -> None:
        tensors = self._tensors.get(order.job)
        if tensors is None:
            return  # a later OpenPart brings new ones; PartBroke has reported why there are none
        if finished is None:
            raise Refused(f"chunk {chunk}: no finished sum to stage; send FinishSum before StageChunks")
        values = finished.result()
        if order.initial:
            tensors.store_initial(chunk, values)
            return
        block_sums = tensors.stage(chunk, values)
        hit_failpoint("shard.staged")
        staged = pb.StagedChunk(chunk=chunk, block_sums=block_sums.tolist())
        self._report(pb.StagedChunks(job=order.job, chunks=[staged]))

    def _carry_out(self, order: TensorOrder) -> Steps:
        match order:
            case pb.OpenPart():
                yield from self._open(order)
            case pb.DropPart():
                self._openings.pop(order.job, None)
                self._drop(order.job)
            case pb.UpdatePart() if order.job in self._tensors:
                tensors = self._tensors[order.job]
                yield from tensors.update(order, lambda ready: self._weights_ready(ready, True))
            case pb.MakeWeights() if order.job in self._tensors:
                tensors = self._tensors[order.job]
                yield from tensors.publish_weights(order, lambda ready: self._weights_ready(ready, False))
            case pb.CopyPart():
                yield from self._copy(order)
            case pb.DropCopy():
                self._drop_copy(order)

    def _copy(self, order: pb.CopyPart) -> Iterator[None]:
        """Copy the tensors for a checkpoint; if that fails, the job goes on without the checkpoint."""
        try:
            if order.job not in self._tensors:
                raise Refused(f"copy {order.copy}: no tensors are here; a later OpenPart brings some")
            arrays = yield from self._tensors[order.job].copy()
            hit_failpoint("plane.copied")
        except MemoryError as error:
            reason = f"not enough memory for a copy of the tensors ({error}); give the host more"
            self._report(pb.CopiedPart(job=order.job, copy=order.copy, reason=reason))
        except Exception as error:
            self._report(pb.CopiedPart(job=order.job, copy=order.copy, reason=reason_of(error)))
        else:
            self._copied(order, arrays)

    def _drop(self, job: str) -> None:
        """Drop the tensors of a job, unless there are none; it may be opened again at once."""
        self._tensors.pop(job, None)
        self._newest.clear(job)
        self._dropped(job)
        if self._metrics is not None:
            self._metrics.end_job(job)
        self._jobs_change(job, list(self._openings))

    def _open(self, order: pb.OpenPart) -> Steps:
        self._openings.pop(order.job, None)  # so that the newest is the last
        self._openings[order.job] = order.opening
        self._drop(order.job)  # first, so that its new tensors never take memory beside its old ones
        allocated = start_call(self._allocating, f"job {order.job}", self._allocate, order)
        yield allocated
        tensors = allocated.result()
        self._tensors[order.job] = tensors
        self._opened(order, tensors)

    def _allocate(self, order: pb.OpenPart) -> PlaneTensors:
        tensors = PlaneTensors(
            order,
            self._read_layout(order),
            self._stripe,
            self._newest,
            incarnation=self._incarnation,
            metrics=self._metrics,
        )
        self._fill(order, tensors.master)
        return tensors
