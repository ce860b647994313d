"""The reference of the package `tiermesh`, from its docstrings, which are Markdown."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import tiermesh

SECTION = re.compile(r"^(Args|Attributes|Raises):\n((?:    .*\n|\n)+)", re.MULTILINE)
ITEM = re.compile(r"^(\w+): (.*(?:\n(?:    .*|$))*)", re.MULTILINE)
EXCEPTIONS = (
    "Failed",
    "JobFailed",
    "NotAllowed",
    "NotFound",
    "NotYet",
    "Refused",
    "TiermeshError",
    "Unreachable",
)


def render_python_package() -> str:
    """Return a section for each class and function that programs import."""
    kinds = [name for name in tiermesh.__all__ if inspect.isclass(getattr(tiermesh, name))]
    records = [name for name in kinds if name not in (*EXCEPTIONS, "AsyncClient", "Client", "Run", "Work")]
    parts = [*_calls("Client"), _class("AsyncClient"), _function("local", tiermesh.local, "## ")]
    parts += [_function("join", tiermesh.join, "## "), *_calls("Run"), *_calls("Work")]
    parts += [_class(name) for name in records]
    parts += [
        _class(name) for name in sorted(EXCEPTIONS, key=lambda name: len(getattr(tiermesh, name).__mro__))
    ]
    return re.sub("\n{3,}", "\n\n", "\n".join(parts))


def _calls(name: str) -> Iterator[str]:
    yield _class(name)
    kind = getattr(tiermesh, name)
    for method, found in vars(kind).items():
        if not method.startswith("_"):
            yield _function(method, found, "### ")


def _class(name: str) -> str:
    kind = getattr(tiermesh, name)
    base = kind.__bases__[0]
    kind_of = f", a kind of {base.__name__}" if base.__name__ in tiermesh.__all__ else ""
    call = f"\n    {_signature(name, kind)}\n" if name in ("Client", "AsyncClient") else ""
    return f"## {name}{kind_of}\n{call}\n{_text(kind)}"


def _function(name: str, function: Any, heading: str) -> str:
    return f"{heading}{name}\n\n    {_signature(name, function)}\n\n{_text(function)}"


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    shown = [
        each.replace(annotation=inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    return f"{name}{signature.replace(parameters=shown, return_annotation=inspect.Signature.empty)}"


def _text(found: Any) -> str:
    """Return a docstring as Markdown: its sections as lists."""
    text = (inspect.getdoc(found) or "") + "\n"
    return SECTION.sub(lambda section: f"{section[1]}:\n\n{_items(section[2])}\n", text)


def _items(section: str) -> str:
    items = ITEM.findall(textwrap.dedent(section))
    return "".join(f"* `{name}`: {' '.join(text.split())}\n" for name, text in items)
