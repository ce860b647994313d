"""A mapping held against its schema, with one line for the first thing that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from services.config.messages import refusal, shown
from services.config.schema import Section
from services.errors import Refused

_SomeSection = TypeVar("_SomeSection", bound=Section)


def validate(value: Any, where: str, schema: type[_SomeSection]) -> _SomeSection:
    """A section from what stands under its key; nothing there is a section of defaults.

    Args:
        value: as read from YAML.
        where: dotted name of the section.
        schema: what to hold it against.

    Raises:
        Refused: naming the first key that is unknown, of the wrong type or out of range.
    """
    if value is None:
        value = {}
    if not isinstance(value, Mapping):
        raise Refused(
            f"{where}: {shown(value)} given, expected a mapping of keys to values; indent its keys under it"
        )
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise refusal(error, where, schema) from None
