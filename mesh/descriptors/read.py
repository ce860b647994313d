"""A mesh graph descriptor from its file: `.textproto`, or the older `.yaml`, converted."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format

from mesh.descriptors.legacy_yaml import converted
from mesh.descriptors.mesh_graph_pb2 import MeshGraphDescriptor
from mesh.descriptors.validate import why_incomplete
from services.errors import Refused

OLDER = (".yaml", ".yml")
_LARGEST_BYTES = 1 << 20
"""A descriptor is some kilobytes; what is larger is another file given by mistake."""


def read_descriptor(path: Path) -> MeshGraphDescriptor:
    """The descriptor in a file; fields that aren't known are skipped.

    Raises:
        Refused: it can't be read, isn't a descriptor, or lacks a field that ttnn needs.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise Refused(
                f"{path}: larger than {_LARGEST_BYTES} bytes, so no mesh graph descriptor; name another"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"{path}: can't be read ({error.strerror}); name a mesh graph descriptor that can"
        ) from None
    except UnicodeDecodeError:
        raise Refused(
            f"{path}: is not text; expected a mesh graph descriptor (.textproto or .yaml)"
        ) from None
    if path.suffix in OLDER:
        descriptor = converted(text, str(path))
    else:
        descriptor = parsed(text, str(path))
    lacking = why_incomplete(descriptor)
    if lacking:
        raise Refused(f"{path}: {lacking}")
    return descriptor


def parsed(text: str, source: str) -> MeshGraphDescriptor:
    """The descriptor that a text says; `source` names it in errors.

    Raises:
        Refused: it isn't protobuf text of this schema; the line says where.
    """
    try:
        return text_format.Parse(text, MeshGraphDescriptor(), allow_unknown_field=True)
    except text_format.ParseError as error:
        place = f"line {error.GetLine()}: " if error.GetLine() else ""
        what = str(error).partition(" : ")[2] or str(error)
        what = " ".join(what.rpartition("': ")[2].split()).rstrip(".:")
        raise Refused(
            f"{source}: {place}{what}; expected protobuf text such as `mesh_descriptors {{ ... }}`"
        ) from None
    except RecursionError:
        raise Refused(f"{source}: nested too deep; expected a mesh graph descriptor") from None


def written(descriptor: MeshGraphDescriptor) -> str:
    """The descriptor as text that ttnn reads."""
    return text_format.MessageToString(descriptor)
