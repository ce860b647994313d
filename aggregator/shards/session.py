"""One aggregator's connection to a shard, from its Hello to the end of its streams: a plane that its orders reach."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import grpc
from google.protobuf.message import Message

from plane.errors import NotStored
from plane.messages import MAX_QUEUED_MESSAGES, unwrap, wrap_report
from plane.plane import Plane, PlaneOwner
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.config.job import JobConfig
from services.errors import Refused, name_internal_error
from services.files.store import FileStore
from services.json_text import LAYOUT
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import OptimizerMetrics
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
        files: files that orders refer to.
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
        files: FileStore,
        note_job: Callable[[str], None] = lambda job: None,
    ) -> None:
        self.name, self.incarnation, self.epoch = hello.name, hello.incarnation, hello.epoch_seen
        self.stripe = Stripe(hello.shard_index, hello.shard_count)
        self.reports: Mailbox[pb.PlaneReport] = Mailbox(MAX_QUEUED_MESSAGES)
        self._files = files
        self.plane = Plane(
            PlaneOwner(
                report=self._report, fail=self._fail, read_layout=self._read_layout, note_job=note_job
            ),
            epoch=self.epoch,
            stripe=self.stripe,
            incarnation=incarnation,
            metrics=metrics,
            update_metrics=optimizer_metrics,
            shared_memory=shared_memory,
        )

    def close(self, reason: str) -> None:
        """End the session and the workers' streams, and drop all payloads and tensors."""
        self.reports.close(reason)
        self.plane.close(reason)

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

    def _read_layout(self, order: pb.OpenPart) -> Layout:
        self._files.keep(order.job, [order.layout])
        self._files.release_others(order.job)
        parameters = JobConfig.from_json(order.spec_json).parameters
        return read_job_layout(self._files.read(order.layout, LAYOUT.limit_bytes), parameters)
