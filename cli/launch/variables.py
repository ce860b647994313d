"""Environment variables in tt-run's files: their form, and `${NAME}` in their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from services.config.refusals import format_value
from services.errors import Refused
from services.runtime.launcher import HOST_VARIABLES

OWN_VARIABLES = frozenset({"TT_MESH_ID", "TT_MESH_HOST_RANK", "TT_MESH_GRAPH_DESC_PATH", "TT_RUN_RANK"})
"""Variables that follow from the plan, so that a file can't set them."""
UNSAFE_PREFIXES = ("LD_", "TIERMESH_", "OPENSSL_", "SSL", "GRPC_", "GCONV_", "GLIBC_")
"""Beginnings of variables that a file can't set: they load code into daemons, or change whom daemons trust.

`PATH` and `PYTHONPATH` are allowed, since own models need them.
"""
MOST_VALUE_CHARACTERS = 4096

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_REFERENCE = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)


def read_variables(
    given: Mapping[Any, Any] | None, place: str, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return variables and their values, with other variables in the values expanded.

    Args:
        given: mapping of a YAML file; None for none.
        place: dotted name of the mapping, for errors.
        environment: variables that `${NAME}` stands for.

    Raises:
        Refused: a name has a bad form, follows from the plan or is unsafe, or no variable can have a value.
    """
    variables = {}
    for name, value in (given or {}).items():
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise Refused(
                f"{place}: {format_value(name)} is no name of a variable, expected letters, digits and '_'; correct it"
            )
        here = f"{place}.{name}"
        if name in OWN_VARIABLES:
            raise Refused(
                f"{here}: {format_value(value)} given, but Tiermesh sets it from rank and mesh_id; remove it"
            )
        if name.startswith(UNSAFE_PREFIXES) and name not in HOST_VARIABLES:
            raise Refused(
                f"{here}: {format_value(value)} given, but names beginning with {', '.join(UNSAFE_PREFIXES)} are not "
                "taken from a file: they load code or change whom a daemon trusts; remove it"
            )
        if not isinstance(value, str):
            raise Refused(f"{here}: {format_value(value)} given, expected a text; write it in quotes")
        variables[name] = expand_variables(value, here, environment)
    return variables


def expand_variables(text: str, place: str, environment: Mapping[str, str]) -> str:
    """Return a text with `$NAME` and `${NAME}` replaced by the variables' values.

    Args:
        text: text as written.
        place: dotted name of the field that has it, for errors.
        environment: variables and their values.

    Raises:
        Refused: a variable is not set, or the result is too long or has characters that are not printable.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in environment:
            raise Refused(
                f"{place}: {format_value(text)} names the environment variable {format_value(name)}, which is not set "
                "here; set it, or write its value"
            )
        return environment[name]

    expanded = _REFERENCE.sub(value, text)
    if len(expanded) > MOST_VALUE_CHARACTERS or not expanded.isprintable():
        raise Refused(
            f"{place}: {format_value(text)} given, expected at most {MOST_VALUE_CHARACTERS} printable characters; "
            "correct it"
        )
    return expanded
