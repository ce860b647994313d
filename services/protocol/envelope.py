"""Control messages travel in an envelope: the aggregator's epoch and one body. Cores deal in bodies."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from google.protobuf.message import Message

from protos import cluster_pb2 as pb

WorkerBody = (
    pb.Hello
    | pb.Heartbeat
    | pb.Ready
    | pb.Description
    | pb.WeightsLoaded
    | pb.Computed
    | pb.Evaluated
    | pb.Failure
)
"""What a worker says."""
WorkerOrder = pb.Welcome | pb.Heartbeat | pb.Join | pb.Lease | pb.Revoke | pb.Resend | pb.Window | pb.Leave
"""What an aggregator tells a worker."""
OptimizerBody = (
    pb.Hello
    | pb.Heartbeat
    | pb.OptimizerStatus
    | pb.Commit
    | pb.CheckpointWritten
    | pb.CheckpointMissed
    | pb.Failure
)
"""What an optimizer says."""
OptimizerOrder = pb.Hello | pb.Heartbeat | pb.Open | pb.Initialise | pb.SendWeights | pb.Close | pb.StartOver
"""What an aggregator tells an optimizer."""

Envelope = TypeVar("Envelope", pb.WorkerMessage, pb.WorkerCommand, pb.OptimizerMessage, pb.OptimizerCommand)


def wrap(envelope: type[Envelope], epoch: int, body: Message) -> Envelope:
    """A body in its envelope.

    Raises:
        ValueError: this envelope carries no such body.
    """
    for field in envelope.DESCRIPTOR.oneofs_by_name["body"].fields:
        if field.message_type is body.DESCRIPTOR:
            message = envelope(epoch=epoch)
            getattr(message, field.name).CopyFrom(body)
            return message
    raise ValueError(f"{envelope.DESCRIPTOR.name} carries no {body.DESCRIPTOR.name}")


@overload
def unwrap(message: pb.WorkerMessage) -> WorkerBody | None: ...
@overload
def unwrap(message: pb.WorkerCommand) -> WorkerOrder | None: ...
@overload
def unwrap(message: pb.OptimizerMessage) -> OptimizerBody | None: ...
@overload
def unwrap(message: pb.OptimizerCommand) -> OptimizerOrder | None: ...
def unwrap(
    message: pb.WorkerMessage | pb.WorkerCommand | pb.OptimizerMessage | pb.OptimizerCommand,
) -> Any:
    """The body, or None if the envelope is empty or carries something this version does not know."""
    field = message.WhichOneof("body")
    return getattr(message, field) if field else None
