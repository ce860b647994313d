"""Messages and RPCs by field number, without their names."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import protos
from tests.support.outward.common import (
    CHECKSUM_FIELD,
    TYPES,
)


def find_methods() -> dict[str, MethodDescriptor]:
    """Return every RPC by its path."""
    modules = [each.name for each in pkgutil.iter_modules(protos.__path__) if each.name.endswith("_pb2")]
    files = [import_module(f"{protos.__name__}.{name}").DESCRIPTOR for name in modules]
    services = [service for file in files for service in file.services_by_name.values()]
    return {f"/{each.full_name}/{method.name}": method for each in services for method in each.methods}


def describe_rpc() -> dict[str, Any]:
    return {
        path: {
            "request": _describe_message(method.input_type),
            "request stream": method.client_streaming,
            "response": _describe_message(method.output_type),
            "response stream": method.server_streaming,
        }
        for path, method in find_methods().items()
    }


def _describe_message(kind: Descriptor, within: tuple[Descriptor, ...] = ()) -> Any:
    """Return the fields of a message by number, with inner messages expanded in place."""
    if kind in within:
        return f"as {len(within) - within.index(kind)} above"
    return {str(field.number): _describe_field(field, (*within, kind)) for field in kind.fields}


def _describe_field(field: FieldDescriptor, within: tuple[Descriptor, ...]) -> Any:
    words = [TYPES[field.type]]
    members = field.containing_oneof.fields if field.containing_oneof else ()
    if _is_map(field):
        words = ["map"]
    elif field.is_repeated:
        words.insert(0, "repeated")
    if len(members) > 1:
        words.append(f"in the oneof of {min(each.number for each in members)}")
    elif members:
        words.insert(0, "optional")
    text = " ".join(words)
    if field.message_type:
        return {text: _describe_message(field.message_type, within)}
    if field.enum_type:  # the name of value 0 contains that of the enum
        return {text: {str(each.number): each.name if each.number else "" for each in field.enum_type.values}}
    return text


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def list_arms(kind: Descriptor) -> list[int]:
    """Return the field numbers of a message's oneof, or a 0 if it has none."""
    return [each.number for oneof in kind.oneofs if len(oneof.fields) > 1 for each in oneof.fields] or [0]


def fill_message(kind: Descriptor, arm: int = 0) -> Any:
    """Return a message whose values tell the numbers of their fields. Of a oneof it has the field `arm`."""
    message = GetMessageClass(kind)()
    for field in kind.fields:
        arms = field.containing_oneof.fields if field.containing_oneof else ()
        is_checksum = field.number == CHECKSUM_FIELD and field.type == FieldDescriptor.TYPE_FIXED32
        if is_checksum or (len(arms) > 1 and field.number != arm):
            continue
        inner = field.message_type
        values = [fill_message(inner, each) for each in list_arms(inner)] if inner else [_fill_scalar(field)]
        if _is_map(field):
            message.MergeFrom(type(message)(**{field.name: {values[0].key: values[0].value}}))
        elif field.is_repeated:
            getattr(message, field.name).extend(values)
        elif inner:
            getattr(message, field.name).CopyFrom(values[0])
        else:
            setattr(message, field.name, values[0])
    return message


def _fill_scalar(field: FieldDescriptor) -> Any:
    by_type: dict[int, Any] = {
        FieldDescriptor.TYPE_ENUM: len(field.enum_type.values) // 2 if field.enum_type else 0,
        FieldDescriptor.TYPE_STRING: f"text {field.number}",
        FieldDescriptor.TYPE_BYTES: b"bytes %d" % field.number,
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_DOUBLE: field.number + 0.5,
    }
    return by_type.get(field.type, field.number + 100)


def set_field(message: Message, number: int, value: Any) -> None:
    setattr(message, message.DESCRIPTOR.fields_by_number[number].name, value)
