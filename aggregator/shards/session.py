"""One aggregator's connection to a shard, from its Hello to the end of its streams: a plane that its orders reach."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

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
from services.files.errors import FileMissing
from services.files.memory import FilesInMemory
from services.files.memory_file import MemoryFile
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
    ) -> None:
        self.name, self.incarnation, self.epoch = hello.name, hello.incarnation, hello.epoch_seen
        self.stripe = Stripe(hello.shard_index, hello.shard_count)
        self.reports: Mailbox[pb.PlaneReport] = Mailbox(MAX_QUEUED_MESSAGES)
        self._files = files
        self._is_closed = False
        self._layouts: dict[int, MemoryFile | None] = {}  # by opening, until they are read
        self._parts: dict[
            str, TensorFile
        ] = {}  # by job: its tensors, while a part of a checkpoint may arrive
        self._copies: dict[str, tuple[int, TensorFile]] = {}  # newest of each job, with its number
        self.plane = Plane(
            PlaneOwner(
                report=self._report,
                fail=self._fail,
                read_layout=self._read_layout,
                fill=self._fill,
                copied=self._copied,
                drop_copy=self._drop_copy,
                jobs_change=self._jobs_change,
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
        self._copies.clear()

    def carry_out(self, orders: Sequence[pb.PlaneOrder]) -> None:
        """Carry out orders of the aggregator, in their sequence; one that can't be carried out ends the session."""
        bodies = [body for envelope in orders if (body := unwrap(envelope)) is not None]
        for body in bodies:
            if isinstance(body, pb.OpenPart):  # now, before too many others are opened
                self._layouts[body.opening] = self._files.hold(body.layout.sha256)
        self.plane.carry_out(bodies)

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
        file = self._layouts.pop(order.opening, None)
        if file is None:
            raise FileMissing(f"layout of job {order.job}: not in memory, or no longer; send it again")
        return read_job_layout(file.read(0, file.size), JobConfig.from_json(order.spec_json).parameters)

    def _fill(self, order: pb.OpenPart, tensors: MasterTensors) -> None:
        """Have a checkpoint's part written into the tensors as it arrives."""
        if order.HasField("tensors"):
            part = self._parts[order.job] = _file_of(
                order.job, name_arrays(tensors.weights, tensors.rule.state)
            )
            part.expect_in(self._files, order.tensors)
            if self._is_closed:  # then the files may have been cleared before
                self._files.remove(part)

    def _jobs_change(self, job: str, here: Sequence[str]) -> None:
        """Expect no part of a checkpoint for the job's former tensors."""
        self._files.remove(self._parts.pop(job, None))

    def _copied(self, order: pb.CopyPart, arrays: Arrays) -> None:
        job, copy, file = order.job, order.copy, _file_of(order.job, arrays)
        self._forget_copy(job)
        self._copies[job] = copy, file
        start_task(self._offer(job, copy, file), f"job {job}: copy {copy} of the tensors")

    async def _offer(self, job: str, copy: int, file: TensorFile) -> None:
        """Let the aggregator read a copy, unless it is dropped by then."""
        ref = await asyncio.to_thread(file.make_ref)
        if self._copies.get(job) == (copy, file):
            self._files.add(ref, file)
            self._report(pb.CopiedPart(job=job, copy=copy, file=ref))

    def _drop_copy(self, order: pb.DropCopy) -> None:
        if self._copies.get(order.job, (0, None))[0] == order.copy:
            self._forget_copy(order.job)

    def _forget_copy(self, job: str) -> None:
        _, file = self._copies.pop(job, (0, None))
        self._files.remove(file)


def _file_of(job: str, arrays: Arrays) -> TensorFile:
    return TensorFile(job, {name: [array] for name, array in arrays.items()})
