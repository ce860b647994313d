"""Tables of all keys that a job's YAML may have, from the schemas that read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from services.config import sections
from services.config.job_parts import CheckpointConfig, StartConfig, TrackingConfig, WireConfig

SCHEMAS: dict[str, type[BaseModel]] = {
    "training_config": sections.TrainingSection,
    "training_config.optimizer of type AdamW": sections.AdamWSection,
    "training_config.optimizer of type SGD": sections.SGDSection,
    "training_config.checkpoint": CheckpointConfig,
    "training_config.start_from": StartConfig,
    "training_config.wire_dtype": WireConfig,
    "training_config.tracking": TrackingConfig,
    "scheduler_config": sections.SchedulerSection,
    "eval_config": sections.EvalSection,
    "device_config": sections.DeviceSection,
    "multihost_config": sections.MultihostSection,
    "multihost_config.pipeline_parallel_config": sections.PipelineSection,
    "transformer_config": sections.TransformerSection,
    "transformer_config.rope_scaling": sections.RopeScalingSection,
    "transformer_config of an own model": sections.CustomSection,
    "transformer_config of an external job": sections.ExternalSection,
    "mlp_config": sections.MLPSection,
    "linear_regression_config": sections.LinearRegressionSection,
}
NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "`true` or `false`"}
UNBOUNDED = 1e30
"""Bound of numbers that have none of their own."""


def render_job_keys() -> str:
    """Return a section for each mapping of a job, with its keys, their types and their defaults."""
    return "\n".join(_section(title, schema) for title, schema in SCHEMAS.items())


def _section(title: str, schema: type[BaseModel]) -> str:
    described = schema.model_json_schema()
    # The schema lacks defaults that a function makes.
    defaults = schema.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
    rows = [
        f"| `{key}` | {type_text(each, described.get('$defs', {}))} | {_default(key, defaults)} |"
        for key, each in described["properties"].items()
    ]
    return "\n".join((f"## {title}\n", "| key | type | default |", "| --- | --- | --- |", *rows, ""))


def type_text(schema: Mapping[str, Any], inner: Mapping[str, Any]) -> str:
    """Return the type of a key in words."""
    if "$ref" in schema:
        return type_text(inner[schema["$ref"].rpartition("/")[2]], inner)
    if "anyOf" in schema:
        kinds = [type_text(each, inner) for each in schema["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in schema or "const" in schema:
        return ", ".join(f"`{_yaml(each)}`" for each in schema.get("enum", [schema.get("const")]))
    kind: str = schema.get("type", "any")
    if kind == "object":
        return "mapping"
    if kind == "array":
        items = type_text(schema.get("items", {}), inner)
        return f"list of: {items}" if items != "any" else "list"
    return NAMES.get(kind, kind) + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    bounds = [
        f"{word} {schema[name]:,}"
        for name, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
            ("exclusiveMaximum", "below"),
        )
        if name in schema and abs(schema[name]) < UNBOUNDED
    ]
    return f" {' '.join(bounds)}" if bounds else ""


def _default(key: str, defaults: Mapping[str, Any]) -> str:
    if key not in defaults:
        return "must be given"
    default = defaults[key]
    return "" if default is None or isinstance(default, dict) else f"`{_yaml(default)}`"


def _yaml(value: object) -> str:
    """Return a value as YAML would have it, on one line."""
    if isinstance(value, str) and value:
        return value
    return json.dumps(value).replace('"', "")
