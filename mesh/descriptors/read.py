"""Reads a mesh graph descriptor from its file: `.textproto`, or the legacy `.yaml`, which is converted."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format

from mesh.descriptors.legacy_yaml import convert_legacy_yaml
from mesh.descriptors.mesh_graph_pb2 import MeshGraphDescriptor
from mesh.descriptors.validate import find_problem
from services.errors import Refused

LEGACY_SUFFIXES = (".yaml", ".yml")
_MAX_FILE_BYTES = 1 << 20
"""Size limit of a file. Descriptors have some kilobytes; a larger file was named by mistake."""


def read_descriptor(path: Path) -> MeshGraphDescriptor:
    """Return the descriptor in a file. Unknown fields are skipped.

    Raises:
        Refused: the file can't be read, isn't a descriptor, or lacks a field that ttnn needs.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise Refused(
                f"{path}: larger than {_MAX_FILE_BYTES} bytes, which no mesh graph descriptor is; name another file"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(
            f"{path}: can't be read ({error.strerror}); name a readable mesh graph descriptor"
        ) from None
    except UnicodeDecodeError:
        raise Refused(
            f"{path}: is not text; expected a mesh graph descriptor (.textproto or .yaml)"
        ) from None
    if path.suffix in LEGACY_SUFFIXES:
        descriptor = convert_legacy_yaml(text, str(path))
    else:
        descriptor = parse_textproto(text, str(path))
    problem = find_problem(descriptor)
    if problem is not None:
        raise Refused(f"{path}: {problem}")
    return descriptor


def parse_textproto(text: str, source: str) -> MeshGraphDescriptor:
    """Parse a descriptor from protobuf text.

    Args:
        text: protobuf text of a MeshGraphDescriptor.
        source: name of the text in errors.

    Raises:
        Refused: the text doesn't follow the schema. The error names the line.
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
        raise Refused(f"{source}: nested too deeply; expected a mesh graph descriptor") from None


def format_textproto(descriptor: MeshGraphDescriptor) -> str:
    """Return the descriptor as protobuf text, the format that ttnn reads."""
    return text_format.MessageToString(descriptor)
