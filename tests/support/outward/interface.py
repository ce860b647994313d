"""Metrics, config schema, and flags of the command."""

from __future__ import annotations

import json
import socket
from typing import Any

import click

from cli import main as command_line
from services.config import sections as config_sections
from services.config.job import JobConfig
from services.config.load import load_job
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import ConnectionMetrics, OptimizerMetrics, WorkerMetrics
from tests.support.outward.common import (
    JOBS,
)


def describe_metrics() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in (WorkerMetrics, AggregatorMetrics, OptimizerMetrics):
        metrics = kind()
        ConnectionMetrics(metrics.registry, metrics.role)  # every daemon has them
        of_role = found[metrics.role] = {}
        collectors: list[Any] = list(metrics.registry._collector_to_names)
        for collector in collectors:
            if hasattr(collector, "_labelnames"):  # the others are prometheus_client's own
                family = collector.describe()[0]
                of_role[family.name] = {"type": family.type, "labels": list(collector._labelnames)}
                if family.type == "histogram":
                    of_role[family.name]["buckets"] = [str(each) for each in collector._upper_bounds]
    return found


def describe_config() -> dict[str, Any]:
    resolved = {}
    for name in ("linear_regression", "mlp"):  # the shipped jobs that need no corpus
        job, _ = load_job(JOBS / f"{name}.yaml", ["wire_dtype=bf16"])
        resolved[name] = json.loads(job.to_json())
    kinds: dict[str, Any] = {
        **config_sections.SECTIONS,
        "optimizer: AdamW": config_sections.AdamWSection,
        "optimizer: SGD": config_sections.SGDSection,
        "rope_scaling": config_sections.RopeScalingSection,
        "transformer_config: own model": config_sections.CustomSection,
        "job": JobConfig,
    }
    return {
        "resolved": resolved,
        "schemas": {name: _inline_schema(kind.model_json_schema()) for name, kind in kinds.items()},
        "settings": {
            name: {key: kind.model_config.get(key) for key in ("extra", "strict", "allow_inf_nan")}
            for name, kind in kinds.items()
        },
        "defaults": {  # a schema lacks those that a function makes
            name: json.loads(kind.model_construct().model_dump_json(by_alias=True, warnings=False))
            for name, kind in kinds.items()
        },
    }


def _inline_schema(schema: Any, definitions: Any = None, named: bool = False) -> Any:
    """Return a JSON schema without references, titles and descriptions.

    Args:
        schema: any part of it.
        definitions: targets of its references.
        named: whether the keys are those that users write, not words of JSON schema.
    """
    if isinstance(schema, list):
        return [_inline_schema(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    definitions = schema.get("$defs", {}) if definitions is None else definitions
    if "$ref" in schema:
        target = definitions[schema["$ref"].rpartition("/")[2]]
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    dropped = () if named else ("$defs", "title", "description")
    return {
        key: value
        if key in ("default", "enum", "const")
        else _inline_schema(value, definitions, named=key == "properties" and not named)
        for key, value in schema.items()
        if key not in dropped
    }


def describe_command() -> dict[str, Any]:
    group = command_line.tiermesh
    return {
        name: {
            each.opts[0] if isinstance(each, click.Option) else f"argument {number}": _describe_parameter(
                each, click.Context(found, info_name=name)
            )
            for number, each in enumerate(found.params)
        }
        for name, found in {**group.load_all(), "tiermesh": group}.items()
    }


def _describe_parameter(parameter: click.Parameter, context: click.Context) -> dict[str, Any]:
    given = parameter.to_info_dict()
    kept = ("envvar", "is_flag", "multiple", "required", "nargs", "type", "count", "hidden")
    default = given["default"]
    plain = isinstance(default, bool | int | float | list | None)
    return {
        "flags": [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else [],
        "metavar": parameter.make_metavar(context),
        "default": default if plain else "<host>" if default == socket.gethostname() else str(default),
        **{key: given[key] for key in kept if key in given},
    }
