"""Orders to a plane and its reports: their runs, and for a shard their envelopes and their sequence."""

from __future__ import annotations

from typing import TypeAlias

import grpc
from google.protobuf.message import Message

from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from services.protocol.bounds import MAX_PAGE_BYTES, MAX_RUN_PIECES, fit
from services.transport.links import LinkClosed

MAX_QUEUED_MESSAGES = 1 << 16
"""Orders or reports that may wait for the peer to read them; a peer that is further behind is disconnected."""
MAX_BATCH_MESSAGES = 512
"""Orders or reports in one message on the wire."""
MAX_BATCH_BYTES = MAX_PAGE_BYTES // 2
"""Size of a batch from which on another one begins; one more may follow, with the losses of all micro-batches."""

Report: TypeAlias = (
    "cluster.Hello | cluster.Heartbeat | pb.WorkerExchanges | pb.WorkerGone | pb.PartOpened | pb.ArrivedPieces"
    " | pb.StagedChunks | pb.UpdatedPart | pb.PartBroke | pb.OrderFailed"
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


def extend(last: Message, body: Message) -> bool:
    """Add a report to the one before it, which nobody has read yet; return False if it does not continue it."""
    match last, body:
        case pb.ArrivedPieces(), pb.ArrivedPieces():
            follows = body.arrival == last.arrival + len(last.pieces) and _run_of(body) == _run_of(last)
            if not follows or len(last.pieces) == MAX_RUN_PIECES:
                return False
            if body.header.HasField("findings"):
                last.header.findings.CopyFrom(body.header.findings)
            last.pieces.extend(body.pieces)
        case pb.StagedChunks(), pb.StagedChunks():
            if last.job != body.job or len(last.chunks) == MAX_RUN_PIECES:
                return False
            last.chunks.extend(body.chunks)
        case pb.UpdatedPart(), pb.UpdatedPart() if (last.job, last.step) == (body.job, body.step):
            last.chunks = body.chunks
        case _:
            return False
    return True


def _run_of(arrived: pb.ArrivedPieces) -> tuple[object, ...]:
    """Return what all pieces of a run have in common."""
    header = arrived.header
    lease = header.job, header.epoch, header.generation, header.step, header.kind, header.lease
    return arrived.session, arrived.in_place, header.dtype, *lease


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
