"""A job's config, written as a person could have: it makes the same job again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.config.job import JobConfig
from services.config.load import load_job, load_job_document
from services.config.origins import Origins
from services.config.paths import REPOSITORY_ROOT
from services.config.settings import list_settings
from services.config.written import write_config

CONFIGS = REPOSITORY_ROOT / "configs/training_configs"


def read_again(config: JobConfig, folder: Path) -> tuple[JobConfig, list[str]]:
    document = yaml.safe_load(write_config(config))
    return load_job_document(document, folder=folder)


def check_same(again: JobConfig, config: JobConfig) -> None:
    """Check that two jobs differ in nothing that either reads."""
    assert list_settings(again, Origins()) == list_settings(config, Origins())
    assert (again.replacement, again.data, again.device, again.pipeline, again.model) == (
        config.replacement, config.data, config.device, config.pipeline, config.model,
    )  # fmt: skip


@pytest.fixture
def shakespeare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shakespeare.txt").write_text("Speak, speak. " * 1000)
    for name in ("gpt2", "llama3", "tinyllama"):
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    monkeypatch.setenv("TIERMESH_DATA", str(tmp_path))


@pytest.mark.usefixtures("shakespeare")
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_config_makes_the_same_job_again(path: Path, tmp_path: Path) -> None:
    config, _ = load_job(path)
    again, _ = read_again(config, tmp_path)
    check_same(again, config)


TRAINING: list[dict[str, Any]] = [
    {"num_epochs": 1, "max_steps": 7},
    {"optimizer": {"type": "SGD", "momentum": 0.9, "nesterov": True}},
    {"optimizer": {"type": "NoOp"}},
    {"scheduler_type": "warmup_cosine", "max_steps": 20, "total_steps": 30},
    {"use_clip_grad_norm": True, "clip_grad_norm_max_norm": 3e-05},
    {"tracking": ["csv"], "wire_dtype": "bf16", "priority": -3, "verify_fraction": 0.5},
    {"start_from": {"job": "1127-100000-aaaa", "step": 3, "step_counter": "continue"}},
    {"data_path": [{"path": "corpus.txt", "weight": 2.0}, {"path": "other.txt", "weight": 1.0}]},
    {"vocabulary": "config", "project_name": "yes: [a name"},
]
SECTIONS: list[dict[str, Any]] = [
    {"device_config": {"mesh_shape": [[2, 4], ["tp", "fsdp"]]}, "training_config": {"batch_size": 8}},
    {"transformer_config": {"num_blocks": 4, "vocab_size": 96, "embedding_dim": 96, "num_heads": 2}},
    {"scheduler_config": {"max_lr": 0.01, "beta1_warmup_steps": 5}, "eval_config": {"top_k": 5}},
    {
        "multihost_config": {
            "enabled": True,
            "num_workers": 4,
            "pipeline_parallel_config": {"blocks_per_rank": {0: 2, 1: 4}, "schedule": "gpipe"},
        }
    },
    {
        "training_config": {"model_type": "llama"},
        "transformer_config": {
            "embedding_dim": 192,
            "num_groups": 3,
            "rope_scaling": {"scaling_factor": 8.0, "original_context_length": 8192},
        },
    },
    {"training_config": {"model_type": "mlp"}, "mlp_config": {"hidden_features": [3, 5]}},
    {"training_config": {"model_type": "linear_regression"}, "linear_regression_config": {"noise": 0.1}},
    {"training_config": {"model_type": "mixer:Mixer"}, "transformer_config": {"depth": 3, "kinds": ["a", 1]}},
]


@pytest.mark.parametrize("sections", [*({"training_config": each} for each in TRAINING), *SECTIONS])
def test_a_job_is_the_same_again(load: Callable[..., Any], folder: Path, sections: dict[str, Any]) -> None:
    (folder / "other.txt").write_text("cab " * 1000)
    config, _ = load(**sections)
    again, _ = read_again(config, folder)
    check_same(again, config)


def test_an_external_job_is_the_same_again(folder: Path) -> None:
    document = {"training_config": {"model_type": "external", "max_steps": 5}}
    config, _ = load_job_document(document, folder=folder)
    again, notices = read_again(config, folder)
    check_same(again, config)
    assert not notices
