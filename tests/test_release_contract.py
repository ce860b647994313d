"""Check that this version and the last release understand each other (docs/operate/operations.md), by what they write.

tests/cluster/test_version_skew.py has them run one cluster.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

from protos import cluster_pb2, compute_pb2, files_pb2, jobs_pb2, pipeline_pb2, plane_pb2
from services.config.job import JobConfig
from services.config.load import load_job
from services.protocol.versions import PROTOCOL_MIN, PROTOCOL_VERSION
from tests.support.outward.common import JOBS
from tests.support.release import extract_release, find_release, read_release

MODULES = (cluster_pb2, compute_pb2, files_pb2, jobs_pb2, pipeline_pb2, plane_pb2)
"""Modules that import all others."""


def describe_file(file: FileDescriptorProto) -> Iterator[tuple[str, Any]]:
    """Yield what peers rely on: fields by number, enum values by number, RPC methods; but what is deprecated."""
    for message in file.message_type:
        yield from _describe_message(f".{file.package}.{message.name}", message)
    for enum in file.enum_type:
        yield from _describe_enum(f".{file.package}.{enum.name}", enum)
    for service in file.service:
        for method in service.method:
            streams = method.client_streaming, method.server_streaming
            yield (
                f"/{file.package}.{service.name}/{method.name}",
                (method.input_type, method.output_type, *streams),
            )


def _describe_message(name: str, message: DescriptorProto) -> Iterator[tuple[str, Any]]:
    for field in message.field:
        if not field.options.deprecated:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
            yield f"{name} {field.number}", (field.name, field.type, field.label, field.type_name, oneof)
    for inner in message.nested_type:
        yield from _describe_message(f"{name}.{inner.name}", inner)
    for enum in message.enum_type:
        yield from _describe_enum(f"{name}.{enum.name}", enum)


def _describe_enum(name: str, enum: EnumDescriptorProto) -> Iterator[tuple[str, Any]]:
    for value in enum.value:
        if not value.options.deprecated:
            yield f"{name} {value.number}", value.name


def present_files() -> Iterator[FileDescriptorProto]:
    files = {}
    for module in MODULES:
        for each in (module.DESCRIPTOR, *module.DESCRIPTOR.dependencies):
            files[each.name] = each
    for each in files.values():
        described = FileDescriptorProto()
        each.CopyToProto(described)
        yield described


def released_files(folder: Path) -> Iterable[FileDescriptorProto]:
    extract_release("protos").extractall(folder, filter="data")
    names = sorted(f"protos/{each.name}" for each in (folder / "protos").glob("*.proto"))
    out = folder / "descriptors"
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", *names]) == 0
    return FileDescriptorSet.FromString(out.read_bytes()).file


def test_protos_keep_all_that_the_release_has(tmp_path: Path) -> None:
    released = [*released_files(tmp_path)]
    present = [*present_files()]
    assert {each.name for each in released} <= {each.name for each in present}
    now = dict(entry for file in present for entry in describe_file(file))
    before = dict(entry for file in released for entry in describe_file(file))
    assert len(before) > 500
    changed = [
        f"{key}: was {before[key]}, is {now.get(key)}" for key in before if now.get(key) != before[key]
    ]
    assert not changed, (
        f"changed since {find_release().version}; add fields and calls, and leave those of before"
    )


def test_the_release_speaks_a_protocol_of_this_version() -> None:
    released = json.loads(read_release("tests/golden/outward/names.json"))["protocol version"]
    assert PROTOCOL_MIN <= released <= PROTOCOL_VERSION


@pytest.mark.parametrize("name", ["linear_regression", "mlp"])
def test_a_job_of_the_release_is_written_as_the_release_writes_it(name: str) -> None:
    """A peer of the release refuses a key that it does not know, so new keys are left out while they have no effect."""
    released = json.loads(read_release("tests/golden/outward/config.json"))["resolved"][name]
    job, _ = load_job(JOBS / f"{name}.yaml", ["wire_dtype=bf16"])
    assert json.loads(job.to_json()) == released
    assert JobConfig.from_json(json.dumps(released)) == job
    assert not job.plan().features
