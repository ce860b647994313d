"""Tests of the checksum within a message."""

from __future__ import annotations

import google_crc32c
import pytest
from hypothesis import given, settings

from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.protocol.checksums import ChecksumMismatch, encode_with_checksum, verify_checksum
from tests.support.anything import message

COMMAND = pb.WorkerCommand(epoch=3, lease=pb.Lease(job="j", lease=(3 << 32) + 1, count=4))


@pytest.mark.parametrize(
    "kind",
    [
        pb.WorkerMessage,
        pb.WorkerCommand,
        pb.OptimizerMessage,
        pb.OptimizerCommand,
        plane.PlaneOrders,
        plane.PlaneReports,
        ChunkHeader,
    ],
)
def test_checksum_is_the_last_field_of_each_message_type(kind: type[pb.WorkerCommand]) -> None:
    field = kind.DESCRIPTOR.fields_by_name["own_crc32c"]
    assert field.number == 15 == max(each.number for each in kind.DESCRIPTOR.fields)
    content = encode_with_checksum(kind(epoch=7))
    found = kind.FromString(content)
    assert verify_checksum(found, content)
    assert found == kind(epoch=7)


def test_checksum_has_the_encoding_of_plain_protobuf() -> None:
    alone = pb.WorkerCommand(own_crc32c=google_crc32c.value(COMMAND.SerializeToString()))
    assert COMMAND.SerializeToString() + alone.SerializeToString() == encode_with_checksum(COMMAND)


def test_message_without_checksum_is_not_checked() -> None:
    content = COMMAND.SerializeToString()
    assert not verify_checksum(pb.WorkerCommand.FromString(content), content)


def test_wrong_checksum_is_reported_with_both_values() -> None:
    content = encode_with_checksum(COMMAND)[:-1] + b"\0"
    with pytest.raises(ChecksumMismatch, match=r"crc32c 0x[0-9a-f]{8}, expected 0x00[0-9a-f]{6}"):
        verify_checksum(pb.WorkerCommand.FromString(content), content)


@settings(max_examples=100, deadline=None)
@given(message(pb.WorkerCommand))
def test_any_message_survives_the_round_trip(sent: pb.WorkerCommand) -> None:
    content = encode_with_checksum(sent)
    found = pb.WorkerCommand.FromString(content)
    assert verify_checksum(found, content)
    assert found.SerializeToString(deterministic=True) == sent.SerializeToString(deterministic=True)
