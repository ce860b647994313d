"""`key=value`: settings of a config, changed from the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.config.foreign_keys import foreign_key_path
from services.config.refusals import format_value
from services.config.section_names import rename_key
from services.config.sections import (
    FLAT_OPTIMIZER_KEYS,
    NESTED_SECTIONS,
    SECTIONS,
    key_parents,
    optimizer_keys,
    section_keys,
)
from services.config.spelling import nearest_names
from services.errors import Refused
from services.yaml_text import parse_yaml


@dataclass(frozen=True)
class Override:
    """New value of a setting.

    Attributes:
        path: keys down to the setting, section first; the section alone stands for all of it.
        value: the new value.
    """

    path: tuple[str, ...]
    value: Any

    @property
    def after_includes(self) -> bool:
        """Whether the setting is in a mapping that may come from a file. If not, it may be the path of that file."""
        return len(self.path) > (2 if self.path[0] == "training_config" else 1)

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
                    f"{'.'.join(self.path)}: {field} is {format_value(value)}, expected a mapping; "
                    f"set {field} itself"
                )
            inner[part] = dict(value or {})  # a copy, because YAML anchors let two settings share a mapping
            inner = inner[part]
        inner[self.path[-1]] = self.value


def parse_overrides(texts: Iterable[str], document: Mapping[Any, Any]) -> list[Override]:
    """Return the overrides that the command line has, each `key=value`.

    A key is dotted, or the last part of one if only one setting has it, or if the job's file gives only one of them.
    A section's name alone takes the path of a file with it.

    Args:
        texts: texts of the command line.
        document: content of the job's file, without its includes.

    Raises:
        Refused: a text has no `=`, its value is not YAML, or its key is unknown or ambiguous.
    """
    overrides = []
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip()
        if not equals or not key:
            raise Refused(
                f"{format_value(text)}: no setting, expected key=value, for example training_config.max_steps=100"
            )
        overrides.append(Override(_full_path(key, value, document), parse_yaml(value, format_value(text))))
    return overrides


def _full_path(key: str, value: str, document: Mapping[Any, Any]) -> tuple[str, ...]:
    shown = format_value(f"{key}={value}")
    parts = rename_key(tuple(key.split(".")))
    if len(parts) > 2 and parts[0] == "training_config" and parts[1] in NESTED_SECTIONS:
        parts = parts[1:]  # as these sections are moved up
    if parts[0] in SECTIONS:
        if parts == ("training_config",) or not all(parts):
            raise Refused(f"{shown}: expected a key of the section, as in {parts[0]}.key=value")
        if len(parts) == 1 and _gives(document, ("training_config", *parts)):
            return ("training_config", *parts)  # the path that older files nest there
        return _spell_like_file(parts, document)
    parents = key_parents(parts[0])
    if parts[0] in FLAT_OPTIMIZER_KEYS:
        parents = [("training_config",)]  # in either spelling
    given = [parent for parent in parents if _gives(document, (*parent, parts[0]))]
    parents = given if len(given) == 1 else parents
    if len(parents) == 1 and all(parts):
        return _spell_like_file((*parents[0], *parts), document)
    if parents:
        choices = " or ".join(".".join((*parent, key)) for parent in parents)
        raise Refused(f"{shown}: several settings have this name; write {choices}")
    foreign = foreign_key_path(parts[0])
    if foreign is not None:
        return foreign  # it is refused by what it is when the sections are checked
    near = nearest_names(parts[0], [*_all_keys(), *SECTIONS])
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else "write it in full, as in training_config.max_steps=100"
    )
    raise Refused(f"{shown}: no setting has this name; {hint}")


def _spell_like_file(path: tuple[str, ...], document: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return an optimizer's setting in the spelling of the file: in the `optimizer` block or flat."""
    training = document.get("training_config")
    if len(path) < 2 or path[0] != "training_config" or not isinstance(training, Mapping):
        return path
    if any(training.get(key) is not None for key in ("optimizer", "optimizer_config")):
        name = FLAT_OPTIMIZER_KEYS.get(path[1])
        return ("training_config", "optimizer", name) if name and len(path) == 2 else path
    flat = {new: old for old, new in FLAT_OPTIMIZER_KEYS.items()}
    if (
        path[1] == "optimizer"
        and path[2:]
        and path[2] in flat
        and FLAT_OPTIMIZER_KEYS.keys() & training.keys()
    ):
        return ("training_config", flat[path[2]])
    return path


def _gives(document: Mapping[Any, Any], path: tuple[str, ...]) -> bool:
    """Return whether a document has a setting."""
    inner: Any = document
    for part in path:
        if not isinstance(inner, Mapping) or part not in inner:
            return False
        inner = inner[part]
    return True


def _all_keys() -> set[str]:
    """Return the keys of all sections, and of `training_config.optimizer`."""
    return optimizer_keys().union(*(section_keys(section) for section in SECTIONS))
