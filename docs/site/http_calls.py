"""The calls of the HTTP API, from the OpenAPI document that `tiermesh web` serves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs.site.job_keys import type_text
from web.app import make_app


def render_http_calls() -> str:
    """Return a section for each call, with its parameters and the members of its body."""
    absent: Any = None  # the document describes the routes alone, which call nothing here
    document = make_app(absent, absent, absent, page={}).openapi()
    return "\n".join(
        line
        for path, calls in document["paths"].items()
        for method, call in calls.items()
        for line in _call(f"{method.upper()} {path}", call, document["components"]["schemas"])
    )


def _call(title: str, call: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {title}\n\n{call.get('description', '')}\n"
    rows = [*_parameters(call, schemas), *_members(call, schemas)]
    if rows:
        yield "\n".join(("| name | in | type | meaning |", "| --- | --- | --- | --- |", *rows, ""))


def _parameters(call: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    for each in call.get("parameters", ()):
        where = each["in"]
        yield f"| `{each['name']}` | {where} | {type_text(each['schema'], schemas)} | {_meaning(each)} |"


def _members(call: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    for content in call.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        body = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        for name, member in body.get("properties", {}).items():
            yield f"| `{name}` | body | {type_text(member, schemas)} | {_meaning(member)} |"


def _meaning(described: Mapping[str, Any]) -> str:
    return " ".join(described.get("description", "").split())
