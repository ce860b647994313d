"""Every message has a bound: a field without one, or a message that could outgrow what a peer receives, fails here."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

import protos
from plane.streams.shared_memory_link import MAX_PLACES
from protos import cluster_pb2 as pb
from protos import jobs_pb2 as jobs
from protos import plane_pb2 as plane
from protos.tensors_pb2 import ChunkHeader
from services.config.field_types import MOST_MICRO_BATCHES
from services.config.job import MOST_SPEC_BYTES
from services.protocol.bounds import (
    BOUNDS,
    MAX_CHUNKS,
    MAX_MICRO_BATCHES,
    MESSAGE_LIMIT_BYTES,
    MessageTooLarge,
    check_received,
    find_bound,
    fit,
)
from services.protocol.envelope import wrap
from services.protocol.plain_text import make_printable
from services.protocol.plan import MOST_BATCHES_PER_LEASE
from services.tensors.layout import MAX_ELEMENTS, chunk_count

F = FieldDescriptor
FILES = [
    import_module(f"protos.{each.name}").DESCRIPTOR
    for each in pkgutil.iter_modules(protos.__path__)
    if each.name.endswith("_pb2") and each.name != "compute_pb2"
]
"""All but those of a compute process, whose channel has a limit of its own."""
MESSAGES: list[Descriptor] = [message for file in FILES for message in file.message_types_by_name.values()]
SENT = sorted(
    {
        kind.name
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods
        for kind in (method.input_type, method.output_type)
    }
)
"""Messages that travel by themselves."""
SCALAR_BYTES = {
    F.CPPTYPE_BOOL: 1,
    F.CPPTYPE_DOUBLE: 8,
    F.CPPTYPE_INT32: 5,  # as sint32
    F.CPPTYPE_UINT32: 5,
    F.CPPTYPE_UINT64: 10,
    F.CPPTYPE_ENUM: 2,
}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def needs_bound(field: FieldDescriptor) -> bool:
    return field.is_repeated or field.cpp_type == F.CPPTYPE_STRING


def varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def largest_value(field: FieldDescriptor, text_bytes: int) -> int:
    """Return the largest size of one value of a field, with its length where it has one."""
    if field.message_type is not None:
        size = largest_size(field.message_type, text_bytes)
    elif field.cpp_type == F.CPPTYPE_STRING:
        size = text_bytes
    else:
        return SCALAR_BYTES[field.cpp_type]
    return size + varint_bytes(size)


def largest_field(field: FieldDescriptor, inherited_bytes: int) -> int:
    bound = find_bound(field)
    tag = varint_bytes(field.number << 3)
    text_bytes = bound.bytes if bound is not None else inherited_bytes
    if bound is not None and bound.total:
        return bound.total
    count = bound.count if bound is not None and field.is_repeated else 1
    return count * (tag + largest_value(field, text_bytes))


def largest_size(kind: Descriptor, inherited_bytes: int = 0) -> int:
    """Return the largest size of a message by the table; of a oneof's fields, the largest counts.

    Args:
        kind: type of the message.
        inherited_bytes: bound of texts whose field has none, such as the keys and values of a map.
    """
    ones = [[largest_field(each, inherited_bytes) for each in oneof.fields] for oneof in kind.oneofs]
    others = [largest_field(each, inherited_bytes) for each in kind.fields if each.containing_oneof is None]
    return sum(map(max, ones)) + sum(others)


def test_every_text_list_and_map_has_a_bound() -> None:
    without = [
        f"{message.name}.{field.name}"
        for message in MESSAGES
        for field in message.fields
        if needs_bound(field) and find_bound(field) is None
    ]
    assert without == [], (
        "give each a bound in services/protocol/bounds.py, and hold it where the message is made"
    )
    for message in MESSAGES:
        for field in message.fields:
            bound = find_bound(field)
            if needs_bound(field) and bound is not None:
                assert bool(bound.count or bound.total) or not field.is_repeated, (
                    f"{message.name}.{field.name}"
                )
                texts = field.cpp_type == F.CPPTYPE_STRING or is_map(field)
                assert bound.bytes or not texts, f"{message.name}.{field.name}"


def test_every_bound_is_of_a_field() -> None:
    fields = [field for message in MESSAGES for field in message.fields if needs_bound(field)]
    known = {f"{field.containing_type.name}.{field.name}" for field in fields} | {
        field.name for field in fields
    }
    assert set(BOUNDS) <= known


@pytest.mark.parametrize("name", SENT)
def test_no_message_outgrows_what_a_peer_receives(name: str) -> None:
    (kind,) = [each for each in MESSAGES if each.name == name]
    assert largest_size(kind) <= MESSAGE_LIMIT_BYTES


def test_the_bounds_are_those_of_what_the_messages_are_about() -> None:
    assert chunk_count(MAX_ELEMENTS) == MAX_CHUNKS
    assert MOST_MICRO_BATCHES == MAX_MICRO_BATCHES
    assert BOUNDS["spec_json"].bytes == MOST_SPEC_BYTES
    assert BOUNDS["Evaluated.losses"].count >= MOST_BATCHES_PER_LEASE
    assert BOUNDS["SharedPlaces.indices"].count == MAX_PLACES
    assert BOUNDS["MissingRequest.files"].count == BOUNDS["MissingReply.missing"].count


def test_the_largest_header_is_within_the_computed_size() -> None:
    header = ChunkHeader(job="j" * 128, incarnation="i" * 128)
    header.findings.losses.extend([1.5] * MAX_MICRO_BATCHES)
    fit(header)
    assert header.ByteSize() <= largest_size(ChunkHeader.DESCRIPTOR)
    header.findings.losses.append(1.5)
    with pytest.raises(
        MessageTooLarge, match=r"^ChunkHeader of job j+: findings: losses: 65537 elements, expected at most"
    ):
        fit(header)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.Hello(fingerprint={str(key): "x" for key in range(65)}), "Hello: fingerprint: 65 elements"),
        (pb.Hello(fingerprint={"key": "x" * 2000}), "Hello: fingerprint: 2000 bytes"),
        (pb.Hello(name="x" * 2000), "Hello: name: 2000 bytes, expected at most 1024"),
        (
            pb.Computed(job="a", lease=7, checksums=[pb.Checksum()] * (1 << 17)),
            "Computed of job a: checksums",
        ),
        (pb.Join(job="a" * 129), "Join of job a+: job: 129 bytes"),
    ],
    ids=["count", "value", "name", "checksums", "job"],
)
def test_what_is_too_large_is_named(message: Any, reason: str) -> None:
    with pytest.raises(MessageTooLarge, match=f"^{reason}.*can't be sent") as caught:
        envelope = pb.WorkerCommand if isinstance(message, pb.Join) else pb.WorkerMessage
        wrap(envelope, 1, message)
    assert len(str(caught.value)) <= 300
    if isinstance(message, pb.Computed):
        assert (caught.value.job, caught.value.lease) == ("a", 7)


def test_texts_for_people_are_cut() -> None:
    message = pb.Failure(job="a", reason="why: " + "long " * 1000 + "; fix it")
    fit(message)
    assert len(message.reason) == 1000
    assert message.reason.startswith("why: ") and message.reason.endswith("; fix it")
    event = jobs.JobEvent(job=jobs.Job(id="a", detail="x" * 4000), text="y" * 2000)
    fit(event)
    assert (len(event.job.detail), len(event.text)) == (1000, 1000)


TEXTS = {
    (kind.full_name, field.name): field
    for kind in (pb.Hello.DESCRIPTOR, pb.Ready.DESCRIPTOR)
    for field in kind.fields
    if field.cpp_type == F.CPPTYPE_STRING or is_map(field)
}
"""Every text of a worker's Hello and Ready, which other messages repeat."""


def message_with(field: FieldDescriptor, text: str) -> pb.WorkerMessage:
    """Return a worker's message that has this text in a field."""
    owner = field.containing_type
    assert owner is not None
    body = getattr(pb, owner.name)()
    if is_map(field):
        getattr(body, field.name)["key"] = text
    elif field.is_repeated:
        getattr(body, field.name).append(text)
    else:
        setattr(body, field.name, text)
    body_field = "hello" if isinstance(body, pb.Hello) else "ready"
    return pb.WorkerMessage(**{body_field: body})


@pytest.mark.parametrize("name", TEXTS, ids="-".join)
@settings(max_examples=25, deadline=None)
@given(
    length=st.one_of(st.integers(-2, 2), st.integers(3, 20_000)),
    letter=st.sampled_from(["x", "\u00e9", "\U0001f600", "\n"]),
)
def test_a_text_that_is_received_can_be_repeated(name: tuple[str, str], length: int, letter: str) -> None:
    """Check that whatever passes the checks on receipt can be sent on, at, below and above every bound."""
    field = TEXTS[name]
    bound = find_bound(field)
    assert bound is not None
    message = message_with(field, letter * max(0, bound.bytes // len(letter.encode()) + length))
    make_printable(message)
    try:
        check_received(message)
    except MessageTooLarge as error:
        assert field.name in error.fault and f"expected at most {bound.bytes}" in error.fault
        assert len(error.fault) <= 300 and error.fault.isprintable()
        return
    fit(message)
    for repeated in (pb.Hello, plane.WorkerAttends, jobs.Member, pb.Ready):
        other = repeated.DESCRIPTOR.fields_by_name.get(field.name)
        body = getattr(message, message.WhichOneof("body") or "")
        if other is not None and field.containing_type is body.DESCRIPTOR and not is_map(field):
            fit(repeated(**{field.name: getattr(body, field.name)}))


def test_a_message_that_is_too_large_names_its_sender() -> None:
    message = pb.WorkerMessage(hello=pb.Hello(name="box-3", incarnation="x" * 129))
    with pytest.raises(MessageTooLarge) as caught:
        check_received(message)
    assert caught.value.fault == "WorkerMessage: hello of box-3: incarnation: 129 bytes, expected at most 128"
