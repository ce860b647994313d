"""Check the keys and examples of docs/use/configuration.md against the schema."""

from __future__ import annotations

import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from services.config.job_parts import CheckpointConfig
from services.config.models import GPT2Config, LlamaConfig, RopeScaling
from services.config.resolve.device import resolve_device
from services.config.sections import (
    DeviceSection,
    LinearRegressionSection,
    MLPSection,
    SchedulerSection,
    Section,
    TrainingSection,
    TransformerSection,
    parse_section,
)

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "use" / "configuration.md").read_text()
EXAMPLES = PAGE + (DOCS / "operate" / "hardware.md").read_text()
SECTIONS: dict[str, type[Section]] = {
    "training_config": TrainingSection,
    "scheduler_config": SchedulerSection,
    "transformer_config": TransformerSection,
}
CHOICES = {"gelu", "gelu_tanh", "relu", "silu"}
"""Values, not keys, in the table of models."""


def table(first: str) -> list[list[str]]:
    """Return the rows of the table whose first column has this title."""
    lines = PAGE.partition(f"\n| {first} |")[2].splitlines()[2:]
    rows = lines[: next(number for number, line in enumerate(lines) if not line.startswith("|"))]
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows]


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def keys_of(*kinds: type[BaseModel]) -> set[str]:
    return {name for kind in kinds for name in kind.model_fields}


def test_every_key_of_checkpoints_is_listed() -> None:
    assert {name for row in table("key of `checkpoint`") for name in names(row[0])} == keys_of(
        CheckpointConfig
    )


def test_keys_of_devices_exist() -> None:
    assert {name for row in table("key of `device_config`") for name in names(row[0])} <= keys_of(
        DeviceSection
    )


def test_keys_of_training_exist() -> None:
    assert {name for row in table("key of `training_config`") for name in names(row[0])} <= keys_of(
        TrainingSection
    )


@pytest.mark.parametrize(
    ("model", "kinds"),
    [
        ("GPT-2", (GPT2Config,)),
        ("Llama", (LlamaConfig, RopeScaling)),
        ("multi-layer perceptron", (MLPSection,)),
        ("linear regression", (LinearRegressionSection,)),
    ],
)
def test_keys_of_models_exist(model: str, kinds: tuple[type[BaseModel], ...]) -> None:
    (row,) = [row for row in table("model") if row[0].startswith(model)]
    assert names(row[2]) - CHOICES <= keys_of(*kinds)


def examples() -> list[dict[str, Any]]:
    blocks = re.findall(r"(?:^    .*\n)+", EXAMPLES, re.MULTILINE)
    return [yaml.safe_load(block) for block in blocks if block.split(":")[0].strip() in SECTIONS]


def test_examples_are_valid() -> None:
    assert len(examples()) >= 4
    for example in examples():
        for name, section in example.items():
            parse_section(section, name, SECTIONS[name])


def test_meshes_are_valid() -> None:
    rows = table("host")
    assert len(rows) >= 5
    for _, _, cell in rows:
        settings = yaml.safe_load("\n".join(re.findall(r"`(.+?)`", cell)))
        device, notices = resolve_device(settings)
        assert device.data_parallel_size * device.tensor_parallel_size == prod(device.mesh_shape)
        assert not notices
