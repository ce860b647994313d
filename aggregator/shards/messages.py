"""Orders to a shard and its reports, in their envelopes, each once; and the core's effects as orders, and back."""

from __future__ import annotations

from typing import TypeAlias

import grpc
from google.protobuf.message import Message

from aggregator.core.events import Drop, DropAll, Forward, Merge
from protos import cluster_pb2 as cluster
from protos import shards_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.tensors.reduction_tree import Node
from services.transport.links import LinkClosed

Report: TypeAlias = (
    "cluster.Hello | cluster.Heartbeat | pb.WorkerExchanges | pb.WorkerGone | pb.PartOpened | pb.ArrivedChunk"
    " | pb.StagedChunk | pb.UpdatedPart | pb.PartBroke"
)
"""What a shard says."""


def _fields(envelope: type[Message]) -> dict[str, str]:
    """The names of an envelope's fields by those of the messages in them."""
    fields = envelope.DESCRIPTOR.fields
    return {field.message_type.full_name: field.name for field in fields if field.message_type is not None}


_ORDER_FIELDS, _REPORT_FIELDS = _fields(pb.ShardOrder), _fields(pb.ShardReport)


def order(body: Message) -> pb.ShardOrder:
    """An order in its envelope."""
    sealed = pb.ShardOrder()
    getattr(sealed, _ORDER_FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return sealed


def report(body: Message) -> pb.ShardReport:
    """A report in its envelope."""
    sealed = pb.ShardReport()
    getattr(sealed, _REPORT_FIELDS[body.DESCRIPTOR.full_name]).CopyFrom(body)
    return sealed


def opened(sealed: pb.ShardOrder | pb.ShardReport) -> Message | None:
    """What an envelope holds; None: nothing that this version knows."""
    field = sealed.WhichOneof("body")
    return getattr(sealed, field) if field else None


def to_order(effect: Drop | Merge | Forward | DropAll) -> Message:
    """An effect on kept sums, for the shard that has them; all shards for DropAll."""
    match effect:
        case Drop():
            return pb.DropSum(chunk=effect.chunk, node=to_node(effect.node))
        case Merge():
            left, right, parent = (to_node(each) for each in (effect.left, effect.right, effect.parent))
            return pb.MergeSums(chunk=effect.chunk, left=left, right=right, parent=parent)
        case Forward():
            return pb.FinishSum(chunk=effect.header.index, node=to_node(effect.node))
        case DropAll():
            return pb.DropSums()


def to_effect(body: Message) -> Drop | Merge | Forward | DropAll | None:
    """What `to_order` was given, of Forward the chunk's index alone; None: it is another order."""
    match body:
        case pb.DropSum():
            return Drop(body.chunk, from_node(body.node))
        case pb.MergeSums():
            return Merge(body.chunk, from_node(body.left), from_node(body.right), from_node(body.parent))
        case pb.FinishSum():
            return Forward(ChunkHeader(index=body.chunk), from_node(body.node))
        case pb.DropSums():
            return DropAll()
    return None


def to_node(node: Node) -> pb.SumNode:
    """A node as a message."""
    return pb.SumNode(first=node.first, count=node.count)


def from_node(node: pb.SumNode) -> Node:
    """A message's node."""
    return Node(node.first, node.count)


class SequenceFilter:
    """Of a stream whose messages are carried out in order, each once: what was told before would be of another step.

    Args:
        last: number of the newest message so far.
    """

    def __init__(self, last: int = 0) -> None:
        self._last = last

    def is_new(self, number: int) -> bool:
        """Whether a message is the next one, or not counted; False: it has come before.

        Raises:
            LinkClosed: one before it is missing.
        """
        if number == 0:
            return True
        if number > self._last + 1:
            raise LinkClosed(
                f"message {number} came, expected {self._last + 1}", grpc.StatusCode.INVALID_ARGUMENT
            )
        new = number > self._last
        self._last = max(self._last, number)
        return new
