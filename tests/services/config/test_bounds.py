"""Tests that every number, text and list of a job has a bound, and so have the products that decide a step's work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from services.config.bounds import MOST_CHECKS, MOST_TOKENS
from services.config.field_types import MOST_MICRO_BATCHES
from services.config.job import MOST_SPEC_BYTES, JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.load import load_job_document
from services.config.models import GPT2Config, LinearRegressionConfig, LlamaConfig, MLPConfig
from services.config.sections import SECTIONS, AdamWSection, RopeScalingSection, SGDSection
from services.errors import Refused
from services.protocol.plan import MOST_EVALUATION_BATCHES
from services.tensors.layout import MAX_ELEMENTS
from tests.support.processor_time import limit_work

DATA = DataConfig(files=(CorpusFile(path="builtin:python-reference", sha256="0" * 64),))
JOB = JobConfig(model=GPT2Config(), data=DATA)
REGRESSION = JobConfig(model=LinearRegressionConfig())
SCHEMAS: list[type[BaseModel]] = [
    JobConfig,
    *SECTIONS.values(),
    AdamWSection,
    SGDSection,
    RopeScalingSection,
]
FREE = {
    "options": "checked by services.config.options and the length of the whole job",
    "mesh_shape": "checked by services.config.resolve.device",
    "multihost_config": "a path or a section, parsed by its own schema",
    "blocks_per_rank": "checked by services.config.resolve.pipeline",
    "optimizer": "parsed by its own schema",
    "rope_scaling": "parsed by its own schema",
    "transformer_config": "parsed by its own schema",
}
"""Fields of the sections whose values have no schema, with what bounds them."""


def unbounded(schema: dict[str, Any], definitions: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of all values in a JSON schema that have no upper or lower bound."""
    if path.rpartition(".")[2] in FREE and "$ref" not in schema and "type" not in schema.get("items", {}):
        return
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from unbounded(definitions[name], definitions, path)
        return
    for key in ("anyOf", "oneOf", "allOf"):
        for inner in schema.get(key, ()):
            yield from unbounded(inner, definitions, path)
    if "enum" in schema or "const" in schema:
        return
    match schema.get("type"):
        case "integer" | "number":
            if not schema.keys() & {"minimum", "exclusiveMinimum"}:
                yield f"{path}: no lower bound"
            if not schema.keys() & {"maximum", "exclusiveMaximum"}:
                yield f"{path}: no upper bound"
        case "string":
            if "maxLength" not in schema:
                yield f"{path}: a text of any length"
        case "array":
            if "maxItems" not in schema:
                yield f"{path}: a list of any length"
            for inner in (*schema.get("prefixItems", ()), schema.get("items", {"const": None})):
                yield from unbounded(inner, definitions, f"{path}[]")
        case "object":
            for name, inner in schema.get("properties", {}).items():
                yield from unbounded(inner, definitions, f"{path}.{name}")
            if isinstance(schema.get("additionalProperties"), dict):
                if "maxProperties" not in schema:
                    yield f"{path}: a mapping of any length"
                for inner in (schema["additionalProperties"], schema.get("propertyNames", {})):
                    yield from unbounded(inner, definitions, f"{path}{{}}")


@pytest.mark.parametrize("kind", SCHEMAS, ids=lambda kind: kind.__name__)
def test_every_value_has_a_bound(kind: type[BaseModel]) -> None:
    schema = kind.model_json_schema()
    assert list(unbounded(schema, schema.get("$defs", {}), kind.__name__)) == []


def test_a_field_without_a_bound_is_found() -> None:
    class Careless(BaseModel):
        count: int
        share: float
        names: list[str]
        table: dict[str, int]

    found = list(unbounded(Careless.model_json_schema(), {}, "Careless"))
    assert {each.partition(":")[0] for each in found} == {
        f"Careless.{path}" for path in ("count", "share", "names", "names[]", "table", "table{}")
    }


def spec(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(JOB.to_json()) | changes
    return document


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"num_workers": 2**20}, ("num_workers: 1048576", f"at most {MOST_MICRO_BATCHES}")),
        (
            {"num_workers": 3, "gradient_accumulation_steps": 30000},
            ("gradient_accumulation_steps: 30000", str(MOST_MICRO_BATCHES), "21845"),
        ),
        (
            {"num_workers": 2**16, "verify_fraction": 0.5},
            ("verify_fraction: 0.5", f"at most {MOST_CHECKS}", "0.0625"),
        ),
        ({"batch_size": 2**20}, ("batch_size: 1048576", str(MOST_TOKENS), "131072")),
        ({"validation_batch_size": 2**20}, ("validation_batch_size: 1048576", str(MOST_TOKENS))),
        ({"model": {"model_type": "gpt2", "num_blocks": 2000}}, ("num_blocks: 2000", "at most 1024")),
        (
            {"model": {"model_type": "gpt2", "num_blocks": 1024, "num_heads": 64, "embedding_dim": 2**20}},
            ("parameters", f"at most {MAX_ELEMENTS}"),
        ),
        (
            {"model": {"model_type": "llama", "num_blocks": 126, "num_heads": 128, "num_groups": 8,
                       "embedding_dim": 2**17, "intermediate_dim": 53248}},
            ("a llama with", f"at most {MAX_ELEMENTS}"),
        ),
        ({"device": {"mesh_shape": [64, 64], "enable_ddp": True, "enable_tp": True}}, ("[64, 64]", "1024 chips")),
        ({"optimizer": {"lr": 1e31}}, ("optimizer.lr: 1e+31", "at most 1e+30")),
        (
            {"data": {"files": [{"path": "a" * 5000, "sha256": "0" * 64}]}},
            ("data.files[0].path", "at most 4096 characters"),
        ),
        (
            {"data": {"files": [{"path": "/a\0b", "sha256": "0" * 64}]}},
            ("data.files[0].path", "without a NUL byte"),
        ),
        ({"data": {"files": [{"path": "/a\ud800", "sha256": "0" * 64}]}}, ("not JSON", "hex escape")),
        (
            {"model": {"model_type": "linear_regression", "num_features": 2**16, "training_samples": 2**20},
             "data": None},
            ("training_samples: 1048576", "32752"),
        ),
        (
            {"model": {"model_type": "linear_regression", "num_features": 1, "num_targets": 1,
                       "training_samples": 2**26}, "data": None, "validation_batch_size": 1},
            ("validation_batch_size: 1", str(MOST_EVALUATION_BATCHES), "26"),
        ),
        (
            {"model": {"model_type": "mlp", "hidden_features": [2**20] * 1000}, "data": None},
            ("a mlp with", str(MAX_ELEMENTS)),
        ),
        ({"model": {"model_type": "a:B", "options": {"deep": json.loads("[" * 30 + "]" * 30)}}}, ("deep", "20 levels")),
        ({"model": {"model_type": "a:B", "options": {"large": 2**64}}}, ("large: 18446744073709551616",)),
        (
            {"model": {"model_type": "a:B", "options": {"text": "a" * MOST_SPEC_BYTES}}},
            ("bytes as JSON", str(MOST_SPEC_BYTES)),
        ),
    ],
)  # fmt: skip
def test_what_is_beyond_a_bound_is_refused_in_one_line(
    changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with pytest.raises(Refused) as refused:
        JobConfig.from_json(json.dumps(spec(**changes)))
    text = str(refused.value)
    assert all(fact in text for fact in facts), text
    assert text.isprintable() and len(text) <= 300, text


@pytest.mark.parametrize(
    "changes",
    [
        {"num_workers": 256, "gradient_accumulation_steps": 256},
        {"num_workers": MOST_MICRO_BATCHES, "verify_fraction": MOST_CHECKS / MOST_MICRO_BATCHES},
        {"num_workers": 64, "gradient_accumulation_steps": 64, "verify_fraction": 1.0},
        {"steps": 2**31 - 1, "seed": 2**63 - 1},
    ],
)
def test_the_bounds_themselves_are_accepted(changes: dict[str, Any]) -> None:
    job = JobConfig.from_json(json.dumps(spec(**changes)))
    assert JobConfig.from_json(job.to_json()) == job


def test_the_largest_published_models_are_accepted() -> None:
    JobConfig(
        model=LlamaConfig(num_heads=64, num_groups=8, embedding_dim=8192, intermediate_dim=28672, num_blocks=80,
                          max_sequence_length=131072, vocab_size=128256),
        data=DATA, batch_size=16, validation_batch_size=16,
    )  # fmt: skip


def test_the_client_refuses_what_the_aggregator_would(tmp_path: Any) -> None:
    training = {
        "data_path": "builtin:python-reference",
        "batch_size": 4,
        "gradient_accumulation_steps": 40_000,
    }
    with pytest.raises(Refused, match=r"gradient_accumulation_steps: 40000 given with .*num_workers 2"):
        load_job_document(
            {"training_config": training, "multihost_config": {"enabled": True, "num_workers": 2}},
            folder=tmp_path,
        )
    with pytest.raises(Refused, match="bytes as JSON"):
        load_job_document(
            {
                "training_config": {"data_path": "builtin:python-reference"},
                "transformer_config": {"model_type": "a:B", "table": "a" * MOST_SPEC_BYTES},
            },
            folder=tmp_path,
        )


NUMBERS = st.sampled_from(
    [
        *(-(2**63), -1, 0, 1, 2, 10, 32, 1023, 1024, 65_535, 65_536, 65_537, 2**20, 2**24, 2**31 - 1, 2**31),
        *(2**32, 2**40, 2**63 - 1, 2**64, 10**30, 1e-300, 5e-324, 1e30, 1e31, 1e308, 0.5, 0.999999999, 1.0),
    ]
)
TOP = [name for name in json.loads(JOB.to_json()) if name not in ("model", "data", "device", "name")]
MODELS = {
    kind.model_fields["model_type"].default: kind
    for kind in (GPT2Config, LlamaConfig, LinearRegressionConfig, MLPConfig)
}


@st.composite
def extreme_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a job in which some numbers are extreme, alone or together."""
    document = json.loads(draw(st.sampled_from([JOB, REGRESSION])).to_json())
    for name in draw(st.lists(st.sampled_from(TOP), max_size=6)):
        if isinstance(document[name], dict):
            for key in document[name]:
                if draw(st.booleans()):
                    document[name][key] = draw(NUMBERS)
        else:
            document[name] = draw(NUMBERS)
    model = draw(st.sampled_from(sorted(MODELS)))
    if draw(st.booleans()):
        fields = [name for name in MODELS[model].model_fields if name != "model_type"]
        document["model"] = {
            "model_type": model,
            **{name: draw(NUMBERS) for name in draw(st.lists(st.sampled_from(fields), max_size=4))},
        }
        document["data"] = (
            None if model in ("linear_regression", "mlp") else json.loads(DATA.model_dump_json())
        )
    if draw(st.booleans()):
        document["device"] = {"mesh_shape": [draw(NUMBERS), draw(NUMBERS)], "threads": draw(NUMBERS)}
    return document


@settings(max_examples=500, deadline=None)
@given(extreme_specs())
def test_extreme_jobs_are_refused_or_bounded(document: dict[str, Any]) -> None:
    with limit_work(5):
        try:
            job = JobConfig.from_json(json.dumps(document))
        except Refused as refused:
            assert str(refused).isprintable() and len(str(refused)) <= 400
        else:
            plan = job.plan()
            assert plan.micro_batches <= MOST_MICRO_BATCHES
            assert plan.micro_batches * plan.verify_fraction <= MOST_CHECKS
            assert len(job.to_json()) <= MOST_SPEC_BYTES
