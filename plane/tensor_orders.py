"""Orders on a plane's tensors, carried out on its kernel thread. An error of one fails the job, not the process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from typing import Any

from google.protobuf.message import Message
from numpy.typing import NDArray

from plane.array_pieces import write_piece
from plane.errors import reason_of
from plane.plane_tensors import PlaneTensors, WeightsReady
from plane.streams.newest_weights import NewestWeights
from plane.tensor_copies import TensorCopies
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
        copies: receives copies for checkpoints.
        incarnation: incarnation of this process.
        metrics: metrics of updates; None if the optimizer's core is in this process and counts them.
        read_layout: returns the layout of the job that an OpenPart names.
        note_job: called with the id of the job whose tensors are to be here, empty for none.
        report: called with each report.
        opened: called with an order to open a job and its tensors; with None for both when a job is dropped.
        weights_ready: called when a chunk can be sent, and whether it was just updated.
    """

    def __init__(
        self,
        *,
        stripe: Stripe,
        newest: NewestWeights,
        copies: TensorCopies,
        incarnation: str,
        metrics: OptimizerMetrics | None,
        read_layout: Callable[[pb.OpenPart], Layout],
        note_job: Callable[[str], None],
        report: Callable[[Message], None],
        opened: Callable[[pb.OpenPart | None, PlaneTensors | None], None],
        weights_ready: Callable[[WeightsReady, bool], None],
    ) -> None:
        self._stripe = stripe
        self._newest = newest
        self._copies = copies
        self._incarnation = incarnation
        self._metrics = metrics
        self._read_layout = read_layout
        self._note_job = note_job
        self._report = report
        self._opened = opened
        self._weights_ready = weights_ready
        self._tensors: PlaneTensors | None = None
        self._opening = 0  # number of the newest OpenPart, whether or not it succeeded

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
        if isinstance(order, pb.OpenPart | pb.DropPart):
            self._open(order)
            return
        if self._tensors is None:
            return
        match order:
            case pb.UpdatePart():
                self._tensors.update(order, lambda ready: self._weights_ready(ready, True))
            case pb.MakeWeights():
                self._tensors.publish_weights(order, lambda ready: self._weights_ready(ready, False))
            case pb.CopyPart():
                self._copies.make(order.copy, self._tensors.arrays())

    def _open(self, order: pb.OpenPart | pb.DropPart) -> None:
        self._tensors = None  # first, so that two jobs never take memory at once
        self._newest.clear()
        self._opened(None, None)
        if self._metrics is not None:
            self._metrics.end_job()
        self._note_job(order.job if isinstance(order, pb.OpenPart) else "")
        if isinstance(order, pb.OpenPart):
            self._opening = order.opening
            self._tensors = PlaneTensors(
                order,
                self._read_layout(order),
                self._stripe,
                self._newest,
                incarnation=self._incarnation,
                metrics=self._metrics,
            )
            self._opened(order, self._tensors)

    # ---- checkpoints, and weights that are sent again ----

    def write_piece(self, piece: pb.ArrayPiece) -> None:
        """Write a piece of a checkpoint into the tensors (Refused)."""
        if self._tensors is not None:
            write_piece(piece, self._tensors.arrays())
            hit_failpoint("shard.write.mid")

    def restore(self, weights: Float32Array, state: Mapping[str, NDArray[Any]]) -> None:
        """Copy a checkpoint's weights and rule state into the tensors (Refused)."""
        if self._tensors is not None:
            self._tensors.master.restore(weights, state)
