"""`--set key=value`: settings of a config, changed from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.config.refusals import format_value, nearest_name, yaml_keys
from services.config.sections import MODEL_SECTIONS, SECTIONS, AdamWSection, SGDSection
from services.errors import Refused
from services.yaml_text import parse_yaml

_FROM_FILES = (*MODEL_SECTIONS, "multihost_config")
"""Sections from files that the job includes; they are overridden after those files are read."""


@dataclass(frozen=True)
class Override:
    """New value of a setting.

    Attributes:
        path: keys down to the setting, section first.
        value: the new value.
    """

    path: tuple[str, ...]
    value: Any

    @property
    def after_includes(self) -> bool:
        """Whether the setting is in an included file. If not, it may be the path of one."""
        return self.path[0] in _FROM_FILES

    def apply(self, sections: dict[Any, Any]) -> None:
        """Change the setting in `sections`; mappings on the way to it are created or copied.

        Raises:
            Refused: there is a plain value on the way.
        """
        inner = sections
        for depth, part in enumerate(self.path[:-1], start=1):
            value = inner.get(part)
            if not (value is None or isinstance(value, dict)):
                field = ".".join(self.path[:depth])
                raise Refused(
                    f"--set {'.'.join(self.path)}: {field} is {format_value(value)}, expected a mapping; "
                    f"set {field} itself"
                )
            inner[part] = dict(value or {})  # a copy, because YAML anchors let two settings share a mapping
            inner = inner[part]
        inner[self.path[-1]] = self.value


def parse_overrides(texts: Iterable[str]) -> list[Override]:
    """Return the overrides of `--set` options, each `key=value`.

    A key is dotted, or the last part of one if only one setting has it.

    Raises:
        Refused: a text has no `=`, its value is not YAML, or its key is unknown or ambiguous.
    """
    overrides = []
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise Refused(
                f"--set {format_value(text)}: expected key=value, for example training_config.max_steps=100"
            )
        overrides.append(Override(_full_path(key), parse_yaml(value, f"--set {format_value(text)}")))
    return overrides


def _full_path(key: str) -> tuple[str, ...]:
    parts = tuple(key.split("."))
    if parts[0] in SECTIONS:
        if len(parts) > 1 and all(parts):
            return parts
        raise Refused(
            f"--set {format_value(key)}: names a whole section, expected a key in it, as in {parts[0]}.key=value"
        )
    parents_by_key = _parents_by_key()
    parents = parents_by_key.get(parts[0], [])
    if len(parents) == 1 and all(parts):
        return (*parents[0], *parts)
    if parents:
        choices = " or ".join(".".join((*parent, key)) for parent in parents)
        raise Refused(f"--set {format_value(key)}: several settings have this name; write {choices}")
    near = nearest_name(parts[0], [*parents_by_key, *SECTIONS])
    hint = f"did you mean {near}?" if near else "write it in full, as in training_config.max_steps=100"
    raise Refused(f"--set {format_value(key)}: no setting has this name; {hint}")


def _parents_by_key() -> dict[str, list[tuple[str, ...]]]:
    """Return the paths of the mappings that have a key, by key."""
    parents_by_key: dict[str, list[tuple[str, ...]]] = {}
    parents: list[tuple[tuple[str, ...], list[str]]] = [
        ((section,), yaml_keys(schema)) for section, schema in SECTIONS.items()
    ]
    parents.append(
        (("training_config", "optimizer"), sorted({*yaml_keys(AdamWSection), *yaml_keys(SGDSection)}))
    )
    for parent, keys in parents:
        for key in keys:
            parents_by_key.setdefault(key, []).append(parent)
    return parents_by_key
