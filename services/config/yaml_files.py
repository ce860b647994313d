"""Reading of YAML files, with errors of one line that say what is wrong and where."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from services.config.refusals import format_value
from services.errors import Refused
from services.printable import one_line, printable_path

_LARGEST_BYTES = 1 << 20
"""Longest config file. Configs have some kilobytes, so a larger file was given by mistake."""


class _Loader(yaml.SafeLoader):
    """Loader for safe YAML that reads `3e-4` as a number, as YAML 1.2 does, and refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping of a node.

        Raises:
            ConstructorError: a key occurs twice.
        """
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {format_value(key.value)} is given twice", key.start_mark
                )
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(?:\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, source: str) -> Any:
    """Return the value of a YAML text.

    Args:
        text: one YAML document.
        source: origin of the text, for the error: a path or an override.

    Raises:
        Refused: the text is not YAML; the line says where.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise Refused(
            f"{source}: {place}{one_line(error.problem or 'not YAML')}; correct that place"
        ) from None
    except (
        Exception
    ) as error:  # PyYAML's constructors let others out: an impossible date, a number of 5,000 digits
        raise Refused(f"{source}: not YAML ({one_line(str(error))[:200]}); correct it") from None


def read_document(path: Path, field: str = "") -> dict[Any, Any]:
    """Return the mapping in a YAML file.

    Args:
        path: path of the file.
        field: dotted name of the field that named the file; empty for a file from the command line.

    Raises:
        Refused: the file can't be read, is not YAML, or has no mapping.
    """
    source = f"{field}: {printable_path(path)}" if field else printable_path(path)
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_BYTES + 1)
    except FileNotFoundError:
        raise Refused(f"{source}: no such file, expected a YAML file; correct the path") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Refused(f"{source}: can't be read ({reason}), expected a YAML file; correct the path") from None
    if len(content) > _LARGEST_BYTES:
        raise Refused(f"{source}: larger than 1 MiB, expected a YAML config; correct the path")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise Refused(
            f"{source}: not UTF-8 at byte {error.start}, expected a YAML file; correct it"
        ) from None
    document = parse_yaml(text, source)
    if not isinstance(document, dict):
        raise Refused(
            f"{source}: {format_value(document)} found, expected a mapping with sections such as "
            "training_config; correct it"
        )
    return document
