"""Orders on a plane's tensors, carried out on its kernel thread. An error of one fails the job, not the process."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import CancelledError, Future

from google.protobuf.message import Message

from plane.errors import reason_of
from plane.master_tensors import MasterTensors
from plane.plane_tensors import Arrays, PlaneTensors, WeightsReady
from plane.streams.newest_weights import NewestWeights
from protos import plane_pb2 as pb
from services.errors import Refused
from services.instrumentation.failpoints import hit_failpoint
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe


class TensorOrders:
    """The tensors of the open job, and what orders do to them.

    Args:
        stripe: chunks of the plane.
        newest: receives new weights, ready to be sent.
        incarnation: incarnation of this process.
        metrics: metrics of updates; None if the optimizer's core is in this process and counts them.
        read_layout: returns the layout of the job that an OpenPart names.
        fill: called with each OpenPart and its tensors, to fill them from a checkpoint (Refused).
        note_job: called with the id of the job whose tensors are to be here, empty for none.
        report: called with each report.
        copied: called with the number and the arrays of a copy for a checkpoint.
        drop_copy: called with the number of a copy that nobody needs.
        opened: called with an order to open a job and its tensors; with None for both when a job is dropped.
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
        note_job: Callable[[str], None],
        report: Callable[[Message], None],
        copied: Callable[[int, Arrays], None],
        drop_copy: Callable[[int], None],
        opened: Callable[[pb.OpenPart | None, PlaneTensors | None], None],
        weights_ready: Callable[[WeightsReady, bool], None],
    ) -> None:
        self._stripe = stripe
        self._newest = newest
        self._incarnation = incarnation
        self._metrics = metrics
        self._read_layout = read_layout
        self._fill = fill
        self._note_job = note_job
        self._report = report
        self._copied = copied
        self._drop_copy = drop_copy
        self._opened = opened
        self._weights_ready = weights_ready
        self._tensors: PlaneTensors | None = None
        self._opening = 0  # number of the newest OpenPart, whether or not it succeeded
        self._job = ""  # its job, until that is dropped

    def carry_out(self, order: Message) -> None:
        """Carry out an order, or report that it failed."""
        try:
            self._carry_out(order)
        except Exception as error:
            self._broke(error)

    def stage(self, order: pb.StageChunk, finished: Future[Float32Array] | None) -> None:
        """Stage the finished sum of a chunk, or store it as initial weights.

        Args:
            order: the order.
            finished: the sum, which may be added still; None if there is none.
        """
        try:
            self._stage(order, finished)
        except CancelledError:
            pass  # the plane is broken or closed
        except Exception as error:
            self._broke(error)

    def _broke(self, error: Exception) -> None:
        self._report(pb.PartBroke(opening=self._opening, reason=reason_of(error)))

    def _stage(self, order: pb.StageChunk, finished: Future[Float32Array] | None) -> None:
        if self._tensors is None:
            return  # a later OpenPart brings new ones; PartBroke has reported why there are none
        if finished is None:
            raise Refused(f"chunk {order.chunk}: no finished sum to stage; send FinishSum before StageChunk")
        values = finished.result()
        if order.initial:
            self._tensors.store_initial(order.chunk, values)
            return
        block_sums = self._tensors.stage(order.chunk, values)
        hit_failpoint("shard.staged")
        self._report(pb.StagedChunk(job=order.job, chunk=order.chunk, block_sums=block_sums.tolist()))

    def _carry_out(self, order: Message) -> None:
        match order:
            case pb.DropPart() if order.job != self._job:
                pass  # another job's tensors are here
            case pb.OpenPart() | pb.DropPart():
                self._open(order)
            case pb.UpdatePart() if self._tensors is not None:
                self._tensors.update(order, lambda ready: self._weights_ready(ready, True))
            case pb.MakeWeights() if self._tensors is not None:
                self._tensors.publish_weights(order, lambda ready: self._weights_ready(ready, False))
            case pb.CopyPart():
                self._copy(order)
            case pb.DropCopy():
                self._drop_copy(order.copy)

    def _copy(self, order: pb.CopyPart) -> None:
        """Copy the tensors for a checkpoint; if that fails, the job goes on without the checkpoint."""
        try:
            if self._tensors is None or order.job != self._job:
                raise Refused(f"copy {order.copy}: no tensors are here; a later OpenPart brings some")
            arrays = {name: array.copy() for name, array in self._tensors.arrays().items()}
            hit_failpoint("plane.copied")
        except MemoryError as error:
            reason = f"not enough memory for a copy of the tensors ({error}); give the host more"
            self._report(pb.CopiedPart(copy=order.copy, reason=reason))
        except Exception as error:
            self._report(pb.CopiedPart(copy=order.copy, reason=reason_of(error)))
        else:
            self._copied(order.copy, arrays)

    def _open(self, order: pb.OpenPart | pb.DropPart) -> None:
        self._tensors = None  # first, so that two jobs never take memory at once
        self._newest.clear()
        self._opened(None, None)
        if self._metrics is not None and self._job:
            self._metrics.end_job(self._job)
        self._job = order.job if isinstance(order, pb.OpenPart) else ""
        self._note_job(self._job)
        if isinstance(order, pb.OpenPart):
            self._opening = order.opening
            tensors = PlaneTensors(
                order,
                self._read_layout(order),
                self._stripe,
                self._newest,
                incarnation=self._incarnation,
                metrics=self._metrics,
            )
            self._fill(order, tensors.master)
            self._tensors = tensors
            self._opened(order, tensors)
