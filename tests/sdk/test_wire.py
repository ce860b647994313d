"""The package's codec of compute.proto agrees with protobuf, both ways, and survives what is no message."""

from __future__ import annotations

import math
import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiermesh
from protos import compute_pb2
from tiermesh import wire


def kind_of(descriptor: Any) -> str:
    """Return the type that the table has for a field of protobuf's."""
    if descriptor.message_type is not None:
        if descriptor.message_type.GetOptions().map_entry:
            return "map"
        name = descriptor.message_type.name if wire.TABLE.get(descriptor.message_type.name) else "Empty"
        return name + "*" * descriptor.is_repeated
    kinds = {descriptor.TYPE_STRING: "text", descriptor.TYPE_DOUBLE: "double", descriptor.TYPE_BOOL: "bool"}
    kind = kinds.get(descriptor.type, "uint") + "*" * descriptor.is_repeated
    return kind + "?" * (descriptor.has_presence and descriptor.containing_oneof.name.startswith("_"))


def values(descriptor: Any) -> st.SearchStrategy[Any]:
    """Return what draws a field's values."""
    kind = kind_of(descriptor)
    if kind == "map":
        return st.dictionaries(st.text(), st.text(), max_size=3)
    if descriptor.message_type is not None:
        one: st.SearchStrategy[Any] = messages(descriptor.message_type)
    elif kind.startswith("uint"):
        bits = {descriptor.TYPE_UINT32: 32, descriptor.TYPE_ENUM: 2}.get(descriptor.type, 64)
        one = st.integers(0, 2**bits - 1)
    else:
        one = {"text": st.text(), "bool": st.booleans(), "double": st.floats(allow_nan=False)}[
            kind.rstrip("?")
        ]
    return st.lists(one, max_size=3) if descriptor.is_repeated else one


def messages(descriptor: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Return what draws messages with any of the fields that the table has; of a oneof at most one."""
    known = {name for name, _ in wire.TABLE.get(descriptor.name, {}).values()}
    body = {field.name for one in descriptor.oneofs if one.name == "body" for field in one.fields}
    plain = st.fixed_dictionaries(
        {}, optional={each.name: values(each) for each in descriptor.fields if each.name in known - body}
    )
    fields = [each for each in descriptor.fields if each.name in known & body]
    if not fields:
        return plain
    bodies = st.one_of([values(each).map(lambda value, name=each.name: {name: value}) for each in fields])
    return st.builds(lambda one, other: {**one, **other}, plain, bodies)


def fill(message: Any, content: dict[str, Any]) -> Any:
    """Set a protobuf message's fields."""
    for name, value in content.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        place = getattr(message, name)
        if kind_of(field) == "map":
            place.update(value)
        elif field.message_type is not None:
            if not field.is_repeated:
                place.SetInParent()
            for one in value if field.is_repeated else [value]:
                fill(place.add() if field.is_repeated else place, one)
        elif field.is_repeated:
            place.extend(value)
        else:
            setattr(message, name, value)
    return message


def read(message: Any) -> dict[str, Any]:
    """Return what the package should read of a protobuf message."""
    known = {name for name, _ in wire.TABLE.get(message.DESCRIPTOR.name, {}).values()}
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in known and (not field.has_presence or message.HasField(field.name)):
            value = getattr(message, field.name)
            found[field.name] = value if field.message_type is None else read(value)
    return found


def descriptor_of(kind: str) -> Any:
    return getattr(compute_pb2, kind).DESCRIPTOR


@pytest.mark.parametrize("kind", [kind for kind in wire.TABLE if kind not in ("Empty", "Pair")])
def test_the_table_is_that_of_the_proto_file(kind: str) -> None:
    fields = {each.number: each for each in descriptor_of(kind).fields}
    assert {
        number: (fields[number].name, kind_of(fields[number])) for number in wire.TABLE[kind]
    } == wire.TABLE[kind]


@given(data=st.data())
def test_protobuf_reads_what_the_package_writes(data: st.DataObject) -> None:
    content = data.draw(messages(compute_pb2.FromProcess.DESCRIPTOR))
    expected = fill(compute_pb2.FromProcess(), content)
    assert compute_pb2.FromProcess.FromString(wire.encode("FromProcess", content)) == expected


@given(data=st.data(), unknown=st.binary(max_size=20))
def test_the_package_reads_what_protobuf_writes(data: st.DataObject, unknown: bytes) -> None:
    message = fill(compute_pb2.ToProcess(), data.draw(messages(compute_pb2.ToProcess.DESCRIPTOR)))
    later = b"\xf2\xff\x01" + bytes([len(unknown)]) + unknown  # field 4,094 of another version
    assert wire.decode("ToProcess", message.SerializeToString() + later) == read(message)


@given(content=st.binary(max_size=60))
def test_any_bytes_are_a_message_or_a_plain_error(content: bytes) -> None:
    try:
        wire.decode("ToProcess", content)
    except ValueError:
        return


@given(data=st.data())
def test_a_message_that_is_cut_short_is_no_other_one(data: st.DataObject) -> None:
    content = wire.encode(
        "ToProcess", {"open_job": {"job": "a", "spec_json": data.draw(st.text(min_size=1))}}
    )
    with pytest.raises(ValueError, match=r"are left|without an end"):
        wire.decode("ToProcess", content[: data.draw(st.integers(1, len(content) - 1))])


def test_infinities_arrive() -> None:
    content = wire.encode("FromProcess", {"gradient_done": {"loss": math.inf}})
    assert compute_pb2.FromProcess.FromString(content).gradient_done.loss == math.inf


class TestChannel:
    """The package's end of a connection."""

    def test_a_message_in_pieces_and_its_descriptors(self) -> None:
        daemon, end = socket.socketpair()
        content = compute_pb2.ToProcess(call=3, use_memory=compute_pb2.UseMemory()).SerializeToString()
        data = struct.pack("<I", len(content)) + content
        reader, writer = os.pipe()
        with daemon:
            socket.send_fds(daemon, [data[:2]], [reader, writer, reader])
            daemon.sendall(data[2:5])
            daemon.sendall(data[5:])
            message, descriptors = wire.Channel(end).receive()
        assert message == {"call": 3, "use_memory": {}}
        assert len(descriptors) == 3
        wire.close_all([*descriptors, reader, writer])
        end.close()

    @pytest.mark.parametrize(
        ("data", "expected"),
        [
            (b"", "has ended"),
            (b"\x04\x00", "has ended"),
            (b"\x04\x00\x00\x00ab", "has ended"),
            (b"\xff\xff\xff\xff", "at most"),
            (b"\x02\x00\x00\x00\xff\xff", "no message"),
        ],
    )
    def test_what_is_no_message_is_an_error(self, data: bytes, expected: str) -> None:
        daemon, end = socket.socketpair()
        with daemon:
            daemon.sendall(data)
        with pytest.raises(tiermesh.Unreachable, match=expected), end:
            wire.Channel(end).receive()

    def test_a_daemon_that_has_ended_takes_nothing(self) -> None:
        daemon, end = socket.socketpair()
        daemon.close()
        with pytest.raises(tiermesh.Unreachable, match="has ended; join again"), end:
            wire.Channel(end).send({"call": 1, "done": {}})

    def test_a_daemon_that_hangs_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wire, "SEND_SECONDS", 0.01)
        daemon, end = socket.socketpair()
        with daemon, end, pytest.raises(tiermesh.Unreachable, match="has read nothing for"):
            wire.Channel(end).send({"failed": {"reason": "x" * (1 << 22)}})


class TestConnect:
    """Sockets that nobody can join."""

    def test_none_there(self, tmp_path: Path) -> None:
        with pytest.raises(tiermesh.Unreachable, match=r"does not exist.*; start the worker") as caught:
            wire.connect(tmp_path / "none.sock")
        assert caught.value.field == "socket_path" and caught.value.fix is not None

    def test_no_daemon_listens(self, tmp_path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / "left.sock"))
        with pytest.raises(tiermesh.Unreachable, match="nobody listens"):
            wire.connect(tmp_path / "left.sock")

    def test_a_path_that_is_too_long(self) -> None:
        with pytest.raises(tiermesh.Refused, match="too long"):
            wire.connect("/tmp/" + "x" * 200)

    def test_not_allowed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        class Forbidden(socket.socket):
            def connect(self, address: Any) -> None:
                raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(socket, "socket", Forbidden)
        with pytest.raises(tiermesh.NotAllowed, match="--allow-user"):
            wire.connect(tmp_path / "closed.sock")
