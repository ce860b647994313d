"""Where each setting of a job was written: in the job's file, in one that it includes, or on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMMAND_LINE = "command line"
"""Origin of a setting that an override changed."""


class Origins:
    """Origins of the settings that were given. What is noted later replaces what was noted under the same key.

    Attributes:
        shipped: a line for each file of Tiermesh's own that was taken, as the job's tree has none.
    """

    def __init__(self) -> None:
        self.shipped: list[str] = []
        self._notes: list[tuple[tuple[str, ...], Any, str]] = []

    def note_file(self, key: str, value: Any, path: Path) -> None:
        """Note that a file has a section, with all settings in it.

        Args:
            key: dotted name of the section.
            value: value as read.
            path: path of the file.
        """
        self._notes.append((tuple(str(key).split(".")), value, str(path)))

    def note_shipped(self, field: str, path: Path) -> None:
        """Note that a setting names a file that only Tiermesh's own tree has."""
        self.shipped.append(f"{field}: read from Tiermesh's own {path}")

    def note_override(self, key: tuple[str, ...], value: Any) -> None:
        """Note that the command line gave a setting, by its keys from the section down."""
        self._notes.append((key, value, COMMAND_LINE))

    def note_moved(self, old_key: str, key: str, value: Any) -> None:
        """Note that a section or a setting was given under another key than the one that it has here."""
        origin = self.find(old_key)
        if origin is not None:
            self._notes.append((tuple(key.split(".")), value, origin))

    def find(self, key: str) -> str | None:
        """Return the origin of a setting, by its dotted key; None if it was not given."""
        found = self.find_written(key)
        return found[0] if found else None

    def find_written(self, key: str) -> tuple[str, Any] | None:
        """Return the origin of a setting and its value as it was written; None if it was not given."""
        parts = tuple(key.split("."))
        for place, value, origin in reversed(self._notes):
            if parts[: len(place)] == place:
                for inner in parts[len(place) :]:
                    if not isinstance(value, Mapping) or inner not in value:
                        return None
                    value = value[inner]
                return origin, value
        return None
