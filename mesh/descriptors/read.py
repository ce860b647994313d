"""Reads a mesh graph descriptor from its file: `.textproto`, or the legacy `.yaml`, which is converted."""

from __future__ import annotations

from pathlib import Path

from google.protobuf import text_format

from mesh.descriptors.legacy_yaml import convert_legacy_yaml
from mesh.descriptors.mesh_graph_pb2 import MeshGraphDescriptor
from mesh.descriptors.validate import find_problem
from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path

LEGACY_SUFFIXES = (".yaml", ".yml")
_MAX_FILE_BYTES = 256 << 10
"""Size limit of a file. Descriptors have some kilobytes; a larger file was named by mistake."""


def read_descriptor(path: Path) -> MeshGraphDescriptor:
    """Return the descriptor in a file. Unknown fields are skipped.

    Raises:
        Refused: the file can't be read, isn't a descriptor, or lacks a field that ttnn needs.
    """
    source = printable_path(path)
    try:
        text = read_input_file("mesh graph descriptor", path, _MAX_FILE_BYTES).decode()
    except UnicodeDecodeError:
        raise Refused(f"{source}: is not text, expected a mesh graph descriptor; correct the path") from None
    if path.suffix in LEGACY_SUFFIXES:
        descriptor = convert_legacy_yaml(text, source)
    else:
        descriptor = parse_textproto(text, source)
    problem = find_problem(descriptor)
    if problem is not None:
        raise Refused(f"{source}: {problem}")
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
