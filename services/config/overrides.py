"""`--set key=value`: one setting of a config, changed from the command line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from services.config.refusals import format_value, nearest_name, yaml_keys
from services.config.sections import MODEL_SECTIONS, SECTIONS, AdamWSection, SGDSection
from services.config.yaml_files import parse_yaml
from services.errors import Refused

_FROM_FILES = (*MODEL_SECTIONS, "multihost_config")
"""Sections that come from files which the job names: overridden after those are read."""


@dataclass(frozen=True)
class Override:
    """A setting's full path, section first, and its new value."""

    path: tuple[str, ...]
    value: Any

    @property
    def after_includes(self) -> bool:
        """Whether it changes what an included file says, rather than which file that is."""
        return self.path[0] in _FROM_FILES

    def apply(self, sections: dict[Any, Any]) -> None:
        """Change the setting in `sections`, making (or copying) the mappings on the way to it.

        Raises:
            Refused: if a plain value is in the way.
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
            inner[part] = dict(value or {})  # a copy: YAML anchors let two settings share a mapping
            inner = inner[part]
        inner[self.path[-1]] = self.value


def parse_overrides(texts: Iterable[str]) -> list[Override]:
    """What `--set` was given, each `key=value`: a dotted key, or the last part of one if only one setting has it.

    Raises:
        Refused: for text without `=`, a value that isn't YAML, a key that nobody has, or one that several have.
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
    owners = _owners()
    homes = owners.get(parts[0], [])
    if len(homes) == 1 and all(parts):
        return (*homes[0], *parts)
    if homes:
        choices = " or ".join(".".join((*home, key)) for home in homes)
        raise Refused(f"--set {format_value(key)}: several settings have this name; write {choices}")
    near = nearest_name(parts[0], [*owners, *SECTIONS])
    hint = f"did you mean {near}?" if near else "write it in full, as in training_config.max_steps=100"
    raise Refused(f"--set {format_value(key)}: no setting has this name; {hint}")


def _owners() -> dict[str, list[tuple[str, ...]]]:
    """Of each key, the paths of the mappings that have it."""
    owners: dict[str, list[tuple[str, ...]]] = {}
    homes: list[tuple[tuple[str, ...], list[str]]] = [
        ((section,), yaml_keys(schema)) for section, schema in SECTIONS.items()
    ]
    homes.append(
        (("training_config", "optimizer"), sorted({*yaml_keys(AdamWSection), *yaml_keys(SGDSection)}))
    )
    for home, keys in homes:
        for key in keys:
            owners.setdefault(key, []).append(home)
    return owners
