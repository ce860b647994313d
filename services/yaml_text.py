"""Parsing of YAML with a bound on work and memory, and errors of one line that say what is wrong and where."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from services.errors import Refused
from services.printable import one_line, printable

YAML_BYTES = 256 << 10
"""Largest text: PyYAML takes up to a second for it, and configs have some kilobytes."""
YAML_NODES = 10_000
"""Maximum number of values, with each alias counted as all that it stands for."""
YAML_DEPTH = 32
"""Maximum depth of nesting."""
YAML_SCALAR_CHARACTERS = 4096
"""Longest single value, as long as a path can be."""

_MERGE_TAG = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """Loader for safe YAML that reads `3e-4` as a number, as YAML 1.2 does, and refuses duplicate keys.

    It counts values while it composes them, so that nothing is expanded beyond the bounds ("billion laughs").
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[int, int] = {}
        self._total = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Return the next value.

        Raises:
            MarkedYAMLError: it exceeds a bound, or contains itself.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > YAML_SCALAR_CHARACTERS:
            raise _refusal(f"a value has more than {YAML_SCALAR_CHARACTERS} characters", event)
        if self._depth >= YAML_DEPTH:
            raise _refusal(f"nested more than {YAML_DEPTH} deep", event)
        before = self._total
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            size = self._sizes.get(id(node))
            if size is None:
                raise _refusal(f"the alias *{printable(str(event.anchor), 40)} contains itself", event)
            self._total += size
        else:
            self._total += 1
            self._sizes[id(node)] = self._total - before
        if self._total > YAML_NODES:
            raise _refusal(f"more than {YAML_NODES} values, with aliases expanded", event)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping of a node.

        Raises:
            ConstructorError: a key occurs twice.
        """
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in seen and key.tag != _MERGE_TAG:
                quoted = printable(f'"{key.value}"', 60)
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {quoted} is given twice", key.start_mark
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
        Refused: the text is not YAML, or exceeds a bound; the line says where.
    """
    if len(text) > YAML_BYTES:
        raise Refused(f"{source}: {len(text)} characters, expected at most {YAML_BYTES}; shorten it")
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = one_line(error.problem or "not YAML", 120)
        raise Refused(f"{source}: {place}{problem}; correct that place") from None
    except Exception as error:
        # PyYAML's constructors raise other errors, too, for an impossible date or a number of 5,000 digits.
        raise Refused(f"{source}: not YAML ({one_line(str(error), 120)}); correct it") from None


def _refusal(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
