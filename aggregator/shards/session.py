"""One aggregator's connection to a shard, from its Hello to the end of its streams: a plane that its orders reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

import grpc
from google.protobuf.message import Message

from plane.checkpoint_files import TensorFile, name_arrays
from plane.errors import NotStored
from plane.master_tensors import MasterTensors
from plane.messages import MAX_QUEUED_MESSAGES, unwrap, wrap_report
from plane.plane import Plane, PlaneOwner
from plane.plane_tensors import Arrays
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.config.job import JobConfig
from services.errors import Refused, name_internal_error
from services.files.memory import FilesInMemory
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import OptimizerMetrics
from services.tasks import start_task
from services.tensors.layout import Layout, read_job_layout
from services.tensors.stripes import Stripe
from services.transport.mailbox import Mailbox

log = logging.getLogger("tiermesh.aggregator")


class ShardSession:
    """Session of the aggregator that this shard obeys.

    Args:
        hello: Hello of the aggregator.
        incarnation: incarnation of this process.
        metrics: metrics of this shard.
        optimizer_metrics: metrics of the updates of this shard's chunks.
        shared_memory: whether payloads may go through memory shared with a worker on the same host.
        files: files that orders and reports refer to.
        note_job: called with the id of the job whose tensors are to be here, empty for none; on any thread.

    Attributes:
        name: name of the aggregator.
        incarnation: incarnation of the aggregator.
        epoch: epoch of the aggregator.
        stripe: chunks of this shard.
        reports: reports on their way to the aggregator; closing it ends the session.
        plane: carries out the aggregator's orders.
    """

    def __init__(
        self,
        hello: cluster.Hello,
        *,
        incarnation: str,
        metrics: AggregatorMetrics,
        optimizer_metrics: OptimizerMetrics,
        shared_memory: bool,
        files: FilesInMemory,
        note_job: Callable[[str], None] = lambda job: None,
    ) -> None:
        self.name, self.incarnation, self.epoch = hello.name, hello.incarnation, hello.epoch_seen
        self.stripe = Stripe(hello.shard_index, hello.shard_count)
        self.reports: Mailbox[pb.PlaneReport] = Mailbox(MAX_QUEUED_MESSAGES)
        self._files = files
        self._note_job = note_job
        self._is_closed = False
        self._part: TensorFile | None = None  # the job's tensors, while a part of a checkpoint may arrive
        self._copy = 0
        self._copy_file: TensorFile | None = None  # copy of that number, unless it is dropped
        self.plane = Plane(
            PlaneOwner(
                report=self._report,
                fail=self._fail,
                read_layout=self._read_layout,
                fill=self._fill,
                copied=self._copied,
                drop_copy=self._drop_copy,
                note_job=self._job_changes,
            ),
            epoch=self.epoch,
            stripe=self.stripe,
            incarnation=incarnation,
            metrics=metrics,
            update_metrics=optimizer_metrics,
            shared_memory=shared_memory,
        )

    def close(self, reason: str) -> None:
        """End the session and the workers' streams, and drop all payloads and tensors; the caller clears the files."""
        self._is_closed = True
        self.reports.close(reason)
        self.plane.close(reason)
        self._copy_file = None

    def carry_out(self, orders: Sequence[pb.PlaneOrder]) -> None:
        """Carry out orders of the aggregator, in their sequence; one that can't be carried out ends the session."""
        self.plane.carry_out([body for envelope in orders if (body := unwrap(envelope)) is not None])

    def _report(self, body: Message) -> None:
        self.reports.put(wrap_report(body))

    def _fail(self, error: Exception) -> None:
        """Report an unexpected error and end the session: the state here does not match the aggregator's orders."""
        is_order_at_fault = isinstance(error, Refused | NotStored)
        reason = str(error) if is_order_at_fault else name_internal_error(error)
        code = grpc.StatusCode.FAILED_PRECONDITION if is_order_at_fault else grpc.StatusCode.INTERNAL
        log.error("%s", reason, exc_info=error)
        self._report(pb.OrderFailed(reason=reason))
        self.reports.close(f"the shard can't carry out an order: {reason}", code)

    # ---- files ----

    def _read_layout(self, order: pb.OpenPart) -> Layout:
        file, size = self._files.open(order.layout.sha256)
        text = file.read(0, size)
        self._files.remove(file)
        return read_job_layout(text, JobConfig.from_json(order.spec_json).parameters)

    def _fill(self, order: pb.OpenPart, tensors: MasterTensors) -> None:
        """Have a checkpoint's part written into the tensors as it arrives."""
        if order.HasField("tensors"):
            self._part = _file_of(name_arrays(tensors.weights, tensors.rule.state))
            self._part.expect_in(self._files, order.tensors)
            if self._is_closed:  # then the files may have been cleared before
                self._files.remove(self._part)

    def _job_changes(self, job: str) -> None:
        """Expect no part of a checkpoint for the former job's tensors."""
        self._files.remove(self._part)
        self._part = None
        self._note_job(job)

    def _copied(self, copy: int, arrays: Arrays) -> None:
        self._drop_copy(self._copy)
        self._copy, self._copy_file = copy, _file_of(arrays)
        start_task(self._offer(copy, self._copy_file), f"copy {copy} of the tensors")

    async def _offer(self, copy: int, file: TensorFile) -> None:
        """Let the aggregator read a copy, unless it is dropped by then."""
        ref = await asyncio.to_thread(file.make_ref)
        if self._copy_file is file:
            self._files.add(ref, file)
            self._report(pb.CopiedPart(copy=copy, file=ref))

    def _drop_copy(self, copy: int) -> None:
        if self._copy == copy:
            self._files.remove(self._copy_file)
            self._copy_file = None


def _file_of(arrays: Arrays) -> TensorFile:
    return TensorFile({name: [array] for name, array in arrays.items()})
