"""Model configs: tt-train's keys and defaults, and bad models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from services.config.load import load_job
from services.config.models import CustomConfig, GPT2Config, LlamaConfig, MLPConfig, RopeScaling
from tests.support.facts import has_facts

Load = Callable[..., Any]
Refuse = Callable[..., str]


def test_llama_keys_match_tt_train(load: Load) -> None:
    job, notices = load(
        transformer_config={
            "model_type": "llama", "num_heads": 8, "num_groups": 2, "embedding_dim": 512, "intermediate_dim": 1536,
            "dropout_prob": 0.0, "num_blocks": 3, "max_sequence_length": 64, "weight_tying": "enabled",
            "theta": 500000.0, "runner_type": "memory_efficient",
            "rope_scaling": {"scaling_factor": 8.0, "original_context_length": 8192},
        }
    )  # fmt: skip
    assert notices == []
    assert job.model == LlamaConfig(
        num_heads=8, num_groups=2, embedding_dim=512, intermediate_dim=1536, dropout_prob=0.0, num_blocks=3,
        max_sequence_length=64, weight_tying=True, theta=500000.0, runner_type="memory_efficient",
        rope_scaling=RopeScaling(
            scaling_factor=8.0, high_freq_factor=4.0, low_freq_factor=1.0, original_context_length=8192
        ),
    )  # fmt: skip


def test_llama_defaults_match_tt_train(load: Load) -> None:
    model = load(transformer_config={"model_type": "llama"})[0].model
    assert model == LlamaConfig()
    assert (model.num_heads, model.num_groups, model.embedding_dim, model.theta) == (6, 3, 384, 10000.0)


@pytest.mark.parametrize(("width", "inner"), [(384, 1024), (2048, 5632), (4096, 11008), (768, 2048)])
def test_the_feed_forward_width_is_two_thirds_of_four_rounded_up_to_256(width: int, inner: int) -> None:
    config = LlamaConfig(num_heads=width // 64, num_groups=1, embedding_dim=width)
    assert config.feed_forward_width == inner


@pytest.mark.parametrize(
    "scaling",
    [None, {}, {"scaling_factor": None, "high_freq_factor": None, "low_freq_factor": None,
                "original_context_length": None}, {"scaling_factor": 0.0, "original_context_length": 0}],
)  # fmt: skip
def test_rope_scaling_of_nulls_is_none(load: Load, scaling: Any) -> None:
    assert (
        load(transformer_config={"model_type": "llama", "rope_scaling": scaling})[0].model.rope_scaling
        is None
    )


def test_an_old_file_may_name_the_llama_in_training_config(load: Load) -> None:
    job, notices = load(
        training_config={"model_type": "llama"}, transformer_config={"num_groups": 2, "theta": 1e4}
    )
    assert (job.model.model_type, job.model.num_groups, notices) == ("llama", 2, [])


def test_a_gpt2_can_be_memory_efficient(load: Load) -> None:
    assert (
        load(transformer_config={"runner_type": "memory_efficient"})[0].model.runner_type
        == "memory_efficient"
    )


def test_mlp_keys_match_tt_train(load: Load) -> None:
    job, _ = load(
        training_config={"model_type": "mlp"},
        mlp_config={
            "input_features": 20,
            "hidden_features": [64, 32],
            "output_features": 5,
            "activation": "gelu",
        },
    )
    assert job.data is None
    assert job.model == MLPConfig(
        input_features=20, hidden_features=(64, 32), output_features=5, activation="gelu"
    )
    assert load(training_config={"model_type": "mlp"})[0].model == MLPConfig()


def test_the_section_selects_the_model(folder: Any) -> None:
    for section, name in (("mlp_config", "mlp"), ("linear_regression_config", "linear_regression")):
        (folder / "job.yaml").write_text(yaml.safe_dump({"training_config": {}, section: {}}))
        assert load_job(folder / "job.yaml")[0].model.model_type == name


def test_a_custom_model_gets_all_other_keys(load: Load) -> None:
    job, notices = load(
        transformer_config={
            "model_type": "shop.models:Mixer", "max_sequence_length": 64, "runner_type": "memory_efficient",
            "width": 128, "num_heads": 4, "names": ["a", None], "deep": {"er": 1.5},
        }
    )  # fmt: skip
    assert notices == []
    assert job.model == CustomConfig(
        model_type="shop.models:Mixer", max_sequence_length=64, runner_type="memory_efficient",
        options={"width": 128, "num_heads": 4, "names": ["a", None], "deep": {"er": 1.5}},
    )  # fmt: skip
    assert job.data is not None
    training = {"model_type": "shop.models:Mixer"}
    assert load(training_config=training, transformer_config={"width": 1})[0].model.options == {"width": 1}


@pytest.mark.parametrize(
    ("sections", "facts"),
    [
        ({"transformer_config": {"model_type": "lama"}},
         'transformer_config.model_type: "lama" given, expected one of: gpt2, llama, linear_regression, mlp, '
         "... package.module:Factory ... llama"),
        ({"transformer_config": {"model_type": 5}}, "transformer_config.model_type: 5 given, expected a text"),
        ({"transformer_config": {"model_type": "a.b:"}},
         'transformer_config.model_type: "a.b:" given, expected a text that matches'),
        ({"training_config": {"model_type": "gpt2"}, "transformer_config": {"model_type": "llama"}},
         'training_config.model_type: "gpt2" given with transformer_config.model_type "llama", expected the same'),
        ({"transformer_config": {"model_type": "mlp"}},
         'transformer_config.model_type: "mlp" given with a transformer_config, expected a mlp_config'),
        ({"transformer_config": {}, "mlp_config": {}}, "mlp_config: given together with transformer_config"),
        ({"transformer_config": {"model_type": "llama", "num_heads": 6, "num_groups": 4}},
         "transformer_config.num_groups: 4 given, ... num_heads (6) ... num_groups: 2"),
        ({"transformer_config": {"model_type": "llama", "num_heads": 8, "num_groups": 2}},
         "transformer_config.embedding_dim: 384 given with num_heads 8 ... 32 ... 48 ... "
         "embedding_dim: 512"),
        ({"transformer_config": {"model_type": "llama", "rope_scaling": {"scaling_factor": 8.0}}},
         "transformer_config.rope_scaling.original_context_length: missing"),
        ({"transformer_config": {"model_type": "llama", "rope_scaling": {"factor": 8.0}}},
         "transformer_config.rope_scaling.factor: unknown key (value 8.0), did you mean"),
        ({"transformer_config": {"model_type": "llama", "rope_scaling": {
            "scaling_factor": 8.0, "original_context_length": 8192, "low_freq_factor": 4.0}}},
         "transformer_config.rope_scaling.low_freq_factor: 4.0 given, ... high_freq_factor (4.0)"),
        ({"transformer_config": {"model_type": "a.b:C", "rate": float("nan")}},
         "transformer_config.rate: nan given, expected"),
        ({"transformer_config": {"model_type": "a.b:C", 3: 4}}, "transformer_config.3: 4 given, expected"),
        ({"transformer_config": {"model_type": "a.b:C", "options": {"x": {1: 2}}}}, "transformer_config.options: {"),
        ({"mlp_config": {"hidden_features": [64, 0]}, "training_config": {"model_type": "mlp"}},
         "mlp_config.hidden_features[1]: 0 given, expected at least 1"),
        ({"mlp_config": {}, "training_config": {"model_type": "linear_regression"}},
         'training_config.model_type: "linear_regression" given with a mlp_config, expected a linear_reg'),
    ],
)  # fmt: skip
def test_a_bad_model_is_refused(refused: Refuse, sections: dict[str, Any], facts: str) -> None:
    assert has_facts(refused(**sections), facts)


def test_the_head_width_follows_from_the_sizes() -> None:
    assert GPT2Config().head_width == 64
    assert LlamaConfig().head_width == 64
