"""Every key that tt-train's configs have had since 2024-12 changes the job, is noticed once, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from services.config.sections import NESTED_SECTIONS
from tests.support.facts import has_facts

Load = Callable[..., tuple]
Refuse = Callable[..., str]

ROPE = {
    "scaling_factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_context_length": 8192,
}

BASES: dict[str, dict[str, Any]] = {
    "gpt2": {"training_config": {"batch_size": 8}, "transformer_config": {}},
    "llama": {"training_config": {"model_type": "llama"}, "transformer_config": {"embedding_dim": 192}},
    "mlp": {"training_config": {"model_type": "mlp"}, "mlp_config": {"training_samples": 500}},
    "speedrun": {"training_config": {"scheduler_type": "speedrun"}, "transformer_config": {}},
    "beta1": {"transformer_config": {}, "scheduler_config": {"max_lr": 1e-3, "beta1_warmup_steps": 9}},
    "linear": {"training_config": {"scheduler_type": "warmup_linear"}, "transformer_config": {}},
    "clip": {"training_config": {"use_clip_grad_norm": True}, "transformer_config": {}},
    "hosts": {"multihost_config": {"enabled": True}, "transformer_config": {}},
    "mesh": {
        "transformer_config": {"num_heads": 8, "embedding_dim": 256},
        "device_config": {"mesh_shape": [1, 2], "enable_tp": True},
    },
}

HONOURED: dict[str, dict[str, dict[str, Any]]] = {
    "gpt2": {
        "training_config": {
            "project_name": "other", "seed": 1, "model_save_interval": 1, "batch_size": 16, "validation_batch_size": 2,
            "num_epochs": 1, "max_steps": 7, "steps": 7, "eval_every": 7, "gradient_accumulation_steps": 2,
            "scheduler_type": "warmup_linear", "use_clip_grad_norm": True, "learning_rate": 0.5, "beta1": 0.5,
            "beta2": 0.5, "eps": 0.5, "weight_decay": 0.5, "momentum": 0.5, "use_no_op": True,
            "optimizer": {"type": "SGD"}, "mixed_precision": "bf16",
        },
        "transformer_config": {
            "num_heads": 4, "embedding_dim": 192, "dropout_prob": 0.0, "num_blocks": 2, "max_sequence_length": 64,
            "weight_tying": "enabled", "runner_type": "memory_efficient", "positional_embedding_type": "fixed",
        },
        "device_config": {"device_ids": [3], "mesh_shape": [[1, 2], ["fsdp", "tp"]]},
        "eval_config": {"repetition_penalty": 2.0, "temperature": 0.5, "top_k": 50, "top_p": 0.5},
    },
    "llama": {
        "training_config": {"micro_batch_size": 8},
        "transformer_config": {"num_groups": 2, "intermediate_dim": 96, "theta": 5e5, "rope_scaling": ROPE},
    },
    "mlp": {"mlp_config": {"input_features": 20, "hidden_features": [8], "output_features": 4}},
    "speedrun": {
        "scheduler_config": {"max_lr": 0.5, "min_lr": 0.0001, "hold_steps": 5, "warmup_steps": 5},
    },
    "beta1": {"scheduler_config": {"beta1_start": 0.5, "beta1_end": 0.5, "beta1_warmup_steps": 5}},
    "linear": {"training_config": {"total_steps": 77}},
    "clip": {"training_config": {"clip_grad_norm_max_norm": 0.5}},
    "hosts": {"multihost_config": {"num_workers": 3}, "training_config": {"epochs": "strict"}},
    "mesh": {"device_config": {"enable_ddp": True, "enable_fsdp": True}},
}  # fmt: skip
"""Keys with a value, by the base that reads them and their section."""

NOTICED: list[tuple[str, str, str, Any]] = [
    ("gpt2", "training_config", "use_moreh_adamw", True),
    ("gpt2", "training_config", "use_kahan_summation", True),
    ("gpt2", "training_config", "checkpoint_dir", "checkpoints"),
    ("gpt2", "training_config", "tokenizer_path", "x/tokenizer.json"),
    ("gpt2", "training_config", "profile_communication", True),
    ("gpt2", "transformer_config", "vocab_size", 96),
    ("gpt2", "transformer_config", "theta", 5e5),
    ("gpt2", "transformer_config", "experimental", {"use_composite_layernorm": True}),
    ("gpt2", "transformer_config", "embedding_placement", "vocab_parallel"),
    ("gpt2", "device_config", "lazy_parameter_init", True),
    ("gpt2", "training_config", "lazy_parameter_init", True),
    ("hosts", "training_config", "num_epochs", 3),
    ("hosts", "multihost_config", "socket_type", "mpi"),
    ("hosts", "multihost_config", "socket_type", "fabric"),
    ("gpt2", "multihost_config", "num_workers", 3),
    ("gpt2", "multihost_config", "pipeline_parallel_config", {"num_blocks": 6, "blocks_per_rank": {0: 6}}),
    ("mesh", "transformer_config", "embedding_placement", "feature_parallel"),
]

REFUSED: list[tuple[str, str, str, Any, str]] = [
    ("gpt2", "training_config", "model_path", "gpt2.msgpack", "msgpack ... transformer_config.model_path"),
    ("gpt2", "training_config", "sync_gradients_every", 4, "not supported yet"),
    ("gpt2", "training_config", "logging_interval", 50, "MNIST"),
    ("gpt2", "training_config", "is_eval", False, "MNIST"),
    ("gpt2", "training_config", "grpo_config", {}, "GRPO"),
    ("gpt2", "training_config", "model_type", "qwen3", "not supported yet"),
    ("gpt2", "transformer_config", "model_type", "deepseek", "not supported yet"),
    ("hosts", "multihost_config", "pipeline_parallel_config", 2, "mapping"),
    ("mesh", "device_config", "enable_pp", True, "pipeline_parallel_config"),
    *(("mesh", "device_config", f"enable_{each}", True, "not supported yet") for each in ("cp", "sp", "ep")),
]  # fmt: skip


def plain(base: str) -> dict[str, Any]:
    """Return a base with its model's type, so that it may nest its sections."""
    sections = {name: dict(keys) for name, keys in BASES[base].items()}
    sections["training_config"] = {"model_type": "gpt2", **sections.get("training_config", {})}
    return sections


def with_key(base: str, section: str, key: str, value: Any) -> dict[str, Any]:
    """Return a base with one more key."""
    sections = plain(base)
    sections.setdefault(section, {})[key] = value
    return sections


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("base", "section", "key", "value"),
    [
        (base, section, key, value)
        for base, sections in HONOURED.items()
        for section, keys in sections.items()
        for key, value in keys.items()
    ],
)
def test_a_key_changes_the_job(
    load: Load, base: str, section: str, key: str, value: Any, nested: bool
) -> None:
    """Sections are given at the top level, or inside `training_config` as files of 2025 have them."""
    sections = with_key(base, section, key, value)
    if key in ("enable_ddp", "enable_fsdp"):
        sections["device_config"]["mesh_shape"] = [2, 2]
    if nested:
        training = sections.setdefault("training_config", {})
        training |= {name: sections.pop(name) for name in NESTED_SECTIONS if name in sections}
    before, expected = load(**plain(base))
    job, notices = load(**sections)
    assert job != before
    fields = [notice.partition(": ")[0] for notice in notices if notice not in expected]
    assert set(fields) <= {"training_config.num_epochs"}


@pytest.mark.parametrize(("base", "section", "key", "value"), NOTICED)
def test_a_key_without_effect_is_noticed_once(
    load: Load, base: str, section: str, key: str, value: Any
) -> None:
    before, expected = load(**plain(base))
    job, notices = load(**with_key(base, section, key, value))
    (notice,) = [each for each in notices if each not in expected]
    assert notice.startswith(f"{section}.{key}") and len(notice) <= 300
    assert job == before


@pytest.mark.parametrize(("base", "section", "key", "value", "facts"), REFUSED)
def test_what_is_not_trained_is_refused_by_name(
    refused: Refuse, base: str, section: str, key: str, value: Any, facts: str
) -> None:
    line = refused(**with_key(base, section, key, value))
    assert has_facts(line, f"{section}.{key}: ... {facts}") and len(line) <= 300
    assert "unknown key" not in line
