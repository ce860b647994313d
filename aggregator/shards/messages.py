"""Orders to a shard and its reports: their envelopes, their sequence, and effects of the core as orders."""

from __future__ import annotations

from typing import TypeAlias

import grpc
from google.protobuf.message import Message

from aggregator.core.events import Assemble, Drop, DropAll, DropPieces, Forward, Keep, Merge, SumEffect
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.protocol.bounds import MAX_PAGE_BYTES, fit
from services.tensors.reduction_tree import Node
from services.transport.links import LinkClosed

MAX_QUEUED_MESSAGES = 1 << 16
"""Orders or reports that may wait for the peer to read them; a peer that is further behind is disconnected."""
MAX_BATCH_MESSAGES = 512
"""Orders or reports in one message on the wire."""
MAX_BATCH_BYTES = MAX_PAGE_BYTES // 2
"""Size of a batch from which on another one begins; one more may follow, with the losses of all micro-batches."""

Report: TypeAlias = (
    "cluster.Hello | cluster.Heartbeat | pb.WorkerExchanges | pb.WorkerGone | pb.PartOpened | pb.ArrivedChunk"
    " | pb.StagedChunk | pb.UpdatedPart | pb.PartBroke | pb.OrderFailed"
)
"""Messages from a shard to its aggregator."""


def _field_names(envelope: type[Message]) -> dict[str, str]:
    """Return the names of an envelope's fields by the full names of their message types."""
    fields = envelope.DESCRIPTOR.fields
    return {field.message_type.full_name: field.name for field in fields if field.message_type is not None}


_ORDER_FIELDS, _REPORT_FIELDS = _field_names(pb.ShardOrder), _field_names(pb.ShardReport)


def wrap_order(body: Message) -> pb.ShardOrder:
    """Return an order in its envelope.

    Raises:
        MessageTooLarge: the order is larger than its bounds.
    """
    fit(body)
    envelope = pb.ShardOrder()
    getattr(envelope, _ORDER_FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return envelope


def wrap_report(body: Message) -> pb.ShardReport:
    """Return a report in its envelope.

    Raises:
        MessageTooLarge: the report is larger than its bounds.
    """
    fit(body)
    envelope = pb.ShardReport()
    getattr(envelope, _REPORT_FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return envelope


def unwrap(envelope: pb.ShardOrder | pb.ShardReport) -> Message | None:
    """Return the body of an envelope; None if this version knows no such body."""
    field = envelope.WhichOneof("body")
    return getattr(envelope, field) if field else None


def effect_to_order(effect: Drop | Merge | Forward | DropPieces | DropAll) -> Message:
    """Return the order that carries out an effect on kept payloads.

    It is for the shard that has them; DropPieces and DropAll are for all shards.
    """
    match effect:
        case Drop():
            return pb.DropSum(chunk=effect.chunk, node=node_to_message(effect.node))
        case Merge():
            left, right, parent = (
                node_to_message(each) for each in (effect.left, effect.right, effect.parent)
            )
            return pb.MergeSums(chunk=effect.chunk, left=left, right=right, parent=parent)
        case Forward():
            return pb.FinishSum(chunk=effect.header.index, node=node_to_message(effect.node))
        case DropPieces():
            return pb.DropPieces(lease=effect.lease)
        case DropAll():
            return pb.DropSums()


def assembly_to_order(assembly: Assemble, kept: Keep | None) -> Message:
    """Return the order to put a chunk together, and to keep it if the core does."""
    node = None if kept is None else node_to_message(kept.node)
    return pb.AssembleSum(lease=assembly.lease, chunk=assembly.chunk, node=node)


def order_to_effects(body: Message) -> list[SumEffect]:
    """Return the effects that were turned into an order here; none for any other order.

    The header of Forward has the chunk's index alone.
    """
    match body:
        case pb.DropSum():
            return [Drop(body.chunk, node_from_message(body.node))]
        case pb.MergeSums():
            left, right, parent = (node_from_message(each) for each in (body.left, body.right, body.parent))
            return [Merge(body.chunk, left, right, parent)]
        case pb.FinishSum():
            return [Forward(ChunkHeader(index=body.chunk), node_from_message(body.node))]
        case pb.AssembleSum():
            kept = [Keep(body.chunk, node_from_message(body.node))] if body.HasField("node") else []
            return [Assemble(body.lease, body.chunk), *kept]
        case pb.DropPieces():
            return [DropPieces(body.lease)]
        case pb.DropSums():
            return [DropAll()]
    return []


def node_to_message(node: Node) -> pb.SumNode:
    """Return a node of the reduction tree as a message."""
    return pb.SumNode(first=node.first, count=node.count)


def node_from_message(node: pb.SumNode) -> Node:
    """Return the node of the reduction tree in a message."""
    return Node(node.first, node.count)


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
