"""Reading of YAML files, with errors of one line that say what is wrong and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from services.config.refusals import format_value
from services.errors import Refused
from services.input_files import read_input_file
from services.printable import printable_path
from services.yaml_text import YAML_BYTES, parse_yaml


def read_document(
    path: Path, field: str = "", *, example: str = "sections such as training_config"
) -> dict[Any, Any]:
    """Return the mapping in a YAML file.

    Args:
        path: path of the file.
        field: dotted name of the field that named the file; empty for a file from the command line.
        example: what the mapping may have, for the error about another value.

    Raises:
        Refused: the file can't be read, is not YAML, or has no mapping.
    """
    source = f"{field}: {printable_path(path)}" if field else printable_path(path)
    content = read_input_file(field, path, YAML_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            f"{source}: not UTF-8 at byte {error.start}, expected a YAML file; correct it"
        ) from None
    document = parse_yaml(text, source)
    if not isinstance(document, dict):
        raise Refused(
            f"{source}: {format_value(document)} found, expected a mapping with {example}; correct it"
        )
    return document
