"""Orders to a shard and its reports: their envelopes, and their sequence."""

from __future__ import annotations

from typing import TypeAlias

import grpc
from google.protobuf.message import Message

from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.protocol.bounds import MAX_PAGE_BYTES, fit
from services.transport.links import LinkClosed

MAX_QUEUED_MESSAGES = 1 << 16
"""Orders or reports that may wait for the peer to read them; a peer that is further behind is disconnected."""
MAX_BATCH_MESSAGES = 512
"""Orders or reports in one message on the wire."""
MAX_BATCH_BYTES = MAX_PAGE_BYTES // 2
"""Size of a batch from which on another one begins; one more may follow, with the losses of all micro-batches."""

Report: TypeAlias = (
    "cluster.Hello | cluster.Heartbeat | pb.WorkerExchanges | pb.WorkerGone | pb.PartOpened | pb.ArrivedPiece"
    " | pb.StagedChunk | pb.UpdatedPart | pb.PartBroke | pb.OrderFailed"
)
"""Messages from a shard to its aggregator."""


def _field_names(envelope: type[Message]) -> dict[str, str]:
    """Return the names of an envelope's fields by the full names of their message types."""
    fields = envelope.DESCRIPTOR.fields
    return {field.message_type.full_name: field.name for field in fields if field.message_type is not None}


_ORDER_FIELDS, _REPORT_FIELDS = _field_names(pb.PlaneOrder), _field_names(pb.PlaneReport)


def wrap_order(body: Message) -> pb.PlaneOrder:
    """Return an order in its envelope.

    Raises:
        MessageTooLarge: the order is larger than its bounds.
    """
    fit(body)
    envelope = pb.PlaneOrder()
    getattr(envelope, _ORDER_FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return envelope


def wrap_report(body: Message) -> pb.PlaneReport:
    """Return a report in its envelope.

    Raises:
        MessageTooLarge: the report is larger than its bounds.
    """
    fit(body)
    envelope = pb.PlaneReport()
    getattr(envelope, _REPORT_FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return envelope


def unwrap(envelope: pb.PlaneOrder | pb.PlaneReport) -> Message | None:
    """Return the body of an envelope; None if this version knows no such body."""
    field = envelope.WhichOneof("body")
    return getattr(envelope, field) if field else None


class SequenceFilter:
    """Filter of one stream's numbered messages: each is taken once and in order.

    Carried out twice or out of order, a message would change the sums of another step.

    Args:
        last: number of the newest message before this filter.
    """

    def __init__(self, last: int = 0) -> None:
        self._last = last

    def is_new(self, number: int) -> bool:
        """Return whether a message is the next one or has no number; False for a repetition.

        Raises:
            LinkClosed: a message before it is missing.
        """
        if number == 0:
            return True
        if number > self._last + 1:
            text = (
                f"message number {number}, expected at most {self._last + 1}: a message before it is missing"
            )
            raise LinkClosed(text, grpc.StatusCode.INVALID_ARGUMENT)
        new = number > self._last
        self._last = max(self._last, number)
        return new
