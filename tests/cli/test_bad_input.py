"""`validate` and `submit` refuse a wrong job in one line, with exit code 2, before anything is queued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from cli.main import main
from services.config.architecture import expected_tensors
from services.config.models import LlamaConfig
from tests.support.fake_aggregator import FakeAggregator

TP8 = {"mesh_shape": [1, 8], "enable_tp": True}
LLAMA = LlamaConfig(
    num_heads=2, num_groups=1, embedding_dim=64, intermediate_dim=96, num_blocks=1, max_sequence_length=64,
    vocab_size=20,
)  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """Hugging Face Llama whose config.json contradicts the shape of one matrix."""
    folder = tmp_path / "stored"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "vocab_size": 20,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {name: np.zeros(shape, np.float32) for name, shape in expected_tensors(LLAMA).items()}
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((64, 96), np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "a mesh without a strategy": (
        {"device_config": {"mesh_shape": [2, 4]}},
        ("device_config.mesh_shape: [2, 4]", "enable_ddp: true"),
    ),
    "strategies that do not fit the mesh": (
        {"device_config": {"mesh_shape": [1, 8], "enable_ddp": True, "enable_tp": True}},
        ("device_config.mesh_shape: [1, 8]", "enable_tp: true"),
    ),
    "two strategies on one axis": (
        {"device_config": {"mesh_shape": [1, 8], "enable_ddp": True, "enable_fsdp": True}},
        ("device_config.enable_fsdp: true", "enable_ddp: true"),
    ),
    "a batch that does not divide": (
        {"device_config": {"mesh_shape": [1, 8], "enable_ddp": True}, "training_config": {"batch_size": 12}},
        ("training_config.batch_size: 12", "8 devices", "batch_size: 16"),
    ),
    "heads that do not divide": (
        {"device_config": TP8, "transformer_config": {"num_heads": 6, "embedding_dim": 384}},
        ("transformer_config.num_heads: 6", "8 devices"),
    ),
    "key-value heads that do not divide": (
        {"device_config": TP8,
         "transformer_config": {"model_type": "llama", "num_heads": 32, "num_groups": 4, "embedding_dim": 2048}},
        ("transformer_config.num_groups: 4", "8 devices"),
    ),
    "a width that does not divide": (
        {"device_config": TP8, "transformer_config": {"num_heads": 8, "embedding_dim": 384}},
        ("transformer_config.embedding_dim: 384", "multiple of 256"),
    ),
    "a sequence of broken tiles": (
        {"transformer_config": {"max_sequence_length": 100}},
        ("transformer_config.max_sequence_length: 100", "multiple of 32"),
    ),
    "a checkpoint that is not there": (
        {"transformer_config": {"model_path": "gone"}},
        ("transformer_config.model_path", "gone/config.json"),
    ),
    "a checkpoint whose shapes differ": (
        {"transformer_config": {"model_path": "stored"}},
        ("model.layers.0.mlp.up_proj.weight", "[64, 96]", "expected [96, 64]"),
    ),
    "a checkpoint of other sizes": (
        {"transformer_config": {"model_path": "stored", "num_blocks": 2}},
        ("transformer_config.num_blocks: 2", "checkpoint"),
    ),
    "an unknown model": (
        {"transformer_config": {"model_type": "lama"}},
        ('transformer_config.model_type: "lama"', "gpt2, llama, linear_regression, mlp", "did you mean llama"),
    ),
    "a model's module without its factory": (
        {"transformer_config": {"model_type": "shop.models:"}},
        ('transformer_config.model_type: "shop.models:"',),
    ),
}  # fmt: skip
"""Sections of a config that is refused, and the facts that the error must name."""


@pytest.mark.usefixtures("stored")
@pytest.mark.parametrize("command", ["validate", "submit"])
@pytest.mark.parametrize("case", CASES)
def test_refused_in_one_line(
    case: str, command: str, tmp_path: Path, aggregator: FakeAggregator, capsys: pytest.CaptureFixture[str]
) -> None:
    sections, facts = CASES[case]
    training = {"data_path": "corpus.txt", **sections.get("training_config", {})}
    (tmp_path / "corpus.txt").write_text("abc " * 1000)
    job = tmp_path / "job.yaml"
    job.write_text(yaml.safe_dump({"transformer_config": {}, **sections, "training_config": training}))
    where = ["--aggregator", aggregator.address] if command == "submit" else []
    assert main([command, str(job), *where]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("tiermesh: ")
    assert all(fact in line for fact in facts), line
    assert aggregator.submitted == []
