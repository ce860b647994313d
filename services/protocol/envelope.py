"""Envelopes of control messages: the aggregator's epoch and one body. The cores see bodies only."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from google.protobuf.message import Message

from protos import cluster_pb2 as pb
from services.protocol.bounds import fit

WorkerBody = (
    pb.Hello
    | pb.Heartbeat
    | pb.Ready
    | pb.Description
    | pb.WeightsLoaded
    | pb.Computed
    | pb.Evaluated
    | pb.Failure
    | pb.Fetching
    | pb.Printed
)
"""Messages from a worker to its aggregator's core."""
CheckReport = pb.MeshChecked | pb.LinkChecked
"""Messages from a worker to its aggregator's service, as answers to a `CheckOrder`."""
WorkerOrder = (
    pb.Welcome | pb.Heartbeat | pb.Join | pb.Row | pb.Lease | pb.Revoke | pb.Resend | pb.Window | pb.Leave
)
"""Messages from an aggregator to a worker's core."""
CheckOrder = pb.CheckMesh | pb.CheckLink
"""Messages from an aggregator to a worker's service. No job depends on them, so no core sees them."""
OptimizerBody = (
    pb.Hello
    | pb.Heartbeat
    | pb.OptimizerStatus
    | pb.Commit
    | pb.CheckpointWritten
    | pb.CheckpointMissed
    | pb.Failure
)
"""Messages from an optimizer to its aggregator."""
OptimizerOrder = (
    pb.Hello
    | pb.Heartbeat
    | pb.Open
    | pb.Initialise
    | pb.SendWeights
    | pb.Close
    | pb.SaveCheckpoint
    | pb.StartOver
)
"""Messages from an aggregator to an optimizer."""

Envelope = TypeVar("Envelope", pb.WorkerMessage, pb.WorkerCommand, pb.OptimizerMessage, pb.OptimizerCommand)


def wrap(envelope: type[Envelope], epoch: int, body: Message) -> Envelope:
    """Return an envelope with this epoch and body.

    Raises:
        MessageTooLarge: the body is larger than its bounds.
        ValueError: this type of envelope has no field for such a body.
    """
    fit(body)
    for field in envelope.DESCRIPTOR.oneofs_by_name["body"].fields:
        if field.message_type is body.DESCRIPTOR:
            message = envelope(epoch=epoch)
            getattr(message, field.name).CopyFrom(body)
            return message
    raise ValueError(f"{envelope.DESCRIPTOR.name} carries no {body.DESCRIPTOR.name}")


@overload
def unwrap(message: pb.WorkerMessage) -> WorkerBody | CheckReport | None: ...
@overload
def unwrap(message: pb.WorkerCommand) -> WorkerOrder | CheckOrder | None: ...
@overload
def unwrap(message: pb.OptimizerMessage) -> OptimizerBody | None: ...
@overload
def unwrap(message: pb.OptimizerCommand) -> OptimizerOrder | None: ...
def unwrap(
    message: pb.WorkerMessage | pb.WorkerCommand | pb.OptimizerMessage | pb.OptimizerCommand,
) -> Any:
    """Return an envelope's body, or None if it has none or one that this version does not know."""
    field = message.WhichOneof("body")
    return getattr(message, field) if field else None
