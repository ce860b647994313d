"""Error texts about bad values: one line with the dotted field, the value, what was expected and how to fix it."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable
from types import NoneType
from typing import Any, TypeGuard, get_args

from pydantic import BaseModel, ValidationError

from services.config.field_types import NO_NUL_PATTERN
from services.config.spelling import most_similar_name, nearest_name, nearest_names
from services.errors import Refused
from services.printable import one_line, printable

UNKNOWN_KEY_CHARACTERS = 200
"""Longest line about an unknown key, in characters."""
_LONGEST_VALUE = 60
_LONGEST_KEY = 40
_LONGEST_UNKNOWN_VALUE = 20

_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a mapping of keys to values",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "string_type": "a text",
    "string_unicode": "valid Unicode text",
    "tuple_type": "a list",
    "union_tag_not_found": "a mapping with model_type",
}
"""Expected values in words, by pydantic's error type. Types with a bound or a choice are in `_expected`."""


class _Short(reprlib.Repr):
    """A `repr` of bounded length, however large, deep or recursive the value is."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 2
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 4
        self.maxstring = self.maxother = self.maxlong = _LONGEST_VALUE

    def repr_int(self, x: int, level: int) -> str:
        """Return the number, or its bit length: Python refuses to write out very long integers."""
        return super().repr_int(x, level) if x.bit_length() < 1024 else f"(a number of {x.bit_length()} bits)"


def format_value(value: object) -> str:
    """Return a value as YAML would have it, in at most 60 printable characters on one line."""
    if value is None or isinstance(value, (bool, str)):
        text = json.dumps(value, ensure_ascii=False)
    else:
        text = _Short().repr(value)
    return printable(text, _LONGEST_VALUE)


def dotted_name(*parts: object) -> str:
    """Return a field's name as users write it in `--set`: `training_config.optimizer.lr`."""
    return ".".join(
        part if isinstance(part, str) and part.isidentifier() and part.isascii() else format_value(part)
        for part in parts
        if part != ""
    )


def unknown_key_error(field: str, key: object, value: object, known: Iterable[str], more: int = 0) -> Refused:
    """Return the error about a key that is not known: the names it may stand for, all known ones, or the nearest.

    Args:
        field: dotted name of the mapping that has the key; empty at the top level.
        key: the key.
        value: the key's value.
        known: known keys of that mapping.
        more: number of further errors about the same section.
    """
    names = sorted(known)
    shown = printable(dotted_name(key), _LONGEST_KEY)
    start = f"{_join(field, (shown,))}: unknown key (value {printable(format_value(value), _LONGEST_UNKNOWN_VALUE)})"
    end = _and_more(more)
    near = nearest_names(key, names) if isinstance(key, str) else []
    if near:
        return _unknown_key(f"{start}, did you mean {' or '.join(near)}? Rename or remove it{end}")
    listed = f"{start}, expected one of: {', '.join(names)}; rename or remove it{end}"
    if names and len(listed) <= UNKNOWN_KEY_CHARACTERS:
        return _unknown_key(listed)
    nearest = most_similar_name(str(shown), names)
    hint = f", the nearest key is {nearest}; rename" if nearest else "; rename"
    return _unknown_key(f"{start}{hint} or remove it{end}")


def _unknown_key(line: str) -> Refused:
    return Refused(printable(line, UNKNOWN_KEY_CHARACTERS))


def _and_more(errors: int) -> str:
    return f" (and {errors} more)" if errors else ""


def validation_refused(error: ValidationError, where: str, schema: type[BaseModel]) -> Refused:
    """Return the first of pydantic's errors about a mapping, as a Refused with one line.

    Args:
        error: pydantic's exception.
        where: dotted name of the mapping; empty at the top level.
        schema: model that the mapping was validated by.
    """
    errors = error.errors(include_url=False)
    first = errors[0]
    kind, value, context = first["type"], first["input"], first.get("ctx", {})
    location = _location(first["loc"])
    field = _join(where, location) or "job"
    more = _and_more(len(errors) - 1)
    if kind in ("extra_forbidden", "invalid_key"):
        inner = _schema_at(schema, location[:-1])
        known = yaml_keys(inner) if inner else []
        return unknown_key_error(_join(where, location[:-1]), location[-1], value, known, len(errors) - 1)
    if kind == "missing":
        return Refused(f"{field}: missing, expected a value; add it{more}")
    if kind == "union_tag_invalid":
        return Refused(
            f"{field}.model_type: {format_value(context['tag'])} given, expected "
            f"{_expected(kind, context, '')}; correct it{more}"
        )
    if kind == "value_error":  # from a validator, which has the whole text
        return Refused(one_line(str(context["error"])) + more)
    if kind == "json_invalid":
        return Refused(
            f"{field}: not JSON ({one_line(str(context['error']))}); send what JobConfig.to_json gives"
        )
    fix = _fix_hint(location, schema, value, context if kind == "literal_error" else {})
    return Refused(
        f"{field}: {format_value(value)} given, expected {_expected(kind, context, first['msg'])}; {fix}{more}"
    )


def yaml_keys(schema: type[BaseModel]) -> list[str]:
    """Return the keys of a schema as users write them."""
    return [field.alias or name for name, field in schema.model_fields.items()]


def _schema_at(schema: type[BaseModel], location: Iterable[int | str]) -> type[BaseModel] | None:
    """Return the schema of a nested mapping, or None if a union or a plain value is on the way to it."""
    inner: object = schema
    for part in location:
        if isinstance(part, int):
            inner = next(iter(get_args(inner)), None)  # the type of a list's items
        else:
            field = inner.model_fields.get(part) if _is_schema(inner) else None
            inner = _without_none(field.annotation) if field else None
    return inner if _is_schema(inner) else None


def _without_none(annotation: object) -> object:
    """Return the schema of an optional mapping; any other annotation is unchanged."""
    choices = get_args(annotation)
    return choices[0] if len(choices) == 2 and choices[1] is NoneType else annotation


def _is_schema(value: object) -> TypeGuard[type[BaseModel]]:
    return isinstance(value, type) and issubclass(value, BaseModel)


def _location(location: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return pydantic's location without the tag that it adds for a discriminated union (`model.gpt2.num_heads`)."""
    return location[:1] + location[2:] if location[:1] == ("model",) and len(location) > 1 else location


def _join(where: str, location: Iterable[int | str]) -> str:
    text = where
    for part in location:
        name = f"[{part}]" if isinstance(part, int) else part
        text += name if isinstance(part, int) or not text else f".{name}"
    return text


def _expected(kind: str, context: dict[str, Any], message: str) -> str:
    bounds = {
        "greater_than": ("a number above", "gt"),
        "greater_than_equal": ("at least", "ge"),
        "less_than": ("a number below", "lt"),
        "less_than_equal": ("at most", "le"),
    }
    if kind in bounds:
        words, key = bounds[kind]
        return f"{words} {context[key]}"
    if kind in ("literal_error", "union_tag_invalid"):
        choices = str(context.get("expected") or context.get("expected_tags"))
        return f"one of: {', '.join(_choices(choices))}"
    if kind == "string_too_short":
        return "a text that isn't empty"
    if kind == "string_too_long":
        return f"at most {context['max_length']} characters"
    if kind == "string_pattern_mismatch" and context["pattern"] == NO_NUL_PATTERN:
        return "a text without a NUL byte"
    if kind == "string_pattern_mismatch":
        return f"a text that matches {context['pattern']}"
    return _EXPECTED.get(kind, one_line(message))


def _choices(listed: str) -> list[str]:
    """Return the choices in pydantic's text `'a', 'b' or True`, as YAML has them."""
    words = listed.replace("'", "").replace(" or ", ", ").split(", ")
    return [word.lower() if word in ("True", "False") else word for word in words]


def _fix_hint(
    location: tuple[int | str, ...], schema: type[BaseModel], value: object, context: dict[str, Any]
) -> str:
    """Return how to fix a value: the most similar choice, else the default as an example."""
    if isinstance(value, str) and context:
        near = nearest_name(value, _choices(str(context["expected"])))
        if near:
            return f"did you mean {near}?"
    name = location[0] if location else ""
    if len(location) == 1 and isinstance(name, str) and name in schema.model_fields:
        default = schema.model_fields[name].default
        if isinstance(default, (bool, int, float, str)) and default != "":
            example = default if isinstance(default, str) else format_value(default)
            return f"write for example {name}: {example}"
    return "correct it or remove it"
