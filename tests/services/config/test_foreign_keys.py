"""Jobs of tt-train's other trainers are refused by what they are, never as a misspelling or as another job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from services.config.load import load_job
from services.config.models import MLPConfig
from services.errors import Refused
from tests.support.facts import has_facts

Load = Callable[..., tuple]
Refuse = Callable[..., str]

MNIST = {
    "batch_size": 128, "logging_interval": 50, "num_epochs": 10, "learning_rate": 0.1, "momentum": 0.9,
    "weight_decay": 0.0, "is_eval": False, "model_save_interval": 500, "model_path": "/tmp/mnist.msgpack",
}  # fmt: skip
IMAGES = {"input_features": 784, "hidden_features": [128, 128], "output_features": 10}


def refusal(folder: Path, document: dict, *overrides: str) -> str:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(Refused) as caught:
        load_job(path, overrides)
    assert len(str(caught.value)) <= caught.value.limit
    return str(caught.value)


@pytest.mark.parametrize(
    ("document", "facts"),
    [
        ({"training_config": {"grpo_config": {"epsilon": 0.2}}}, "training_config.grpo_config: ... is ... GRPO"),
        ({"training_config": {}, "grpo_config": {"group_size": 1}}, "grpo_config: ... GRPO"),
        ({"training_config": {"model_source": "meta-llama/Llama-3.2-1B"}}, "training_config.model_source: ... GRPO"),
        ({"training_config": {}, "remote_rollout_config": {}}, "remote_rollout_config: ... GRPO"),
        ({"training_config": {}, "diffusion_config": {"timesteps": 1000}}, "diffusion_config: ... diffusion"),
        ({"training_config": {"hflip_augment": True}}, "training_config.hflip_augment: true is ... diffusion"),
        ({"training_config": {}, "eval_config": {"cfg_scale": 2.0}}, "eval_config.cfg_scale: 2.0 is ... diffusion"),
        ({"training_config": MNIST, "mlp_config": IMAGES}, "training_config.logging_interval: 50 is ... MNIST"),
        ({"training_config": {**MNIST, "mlp_config": IMAGES}}, "training_config.logging_interval: 50 is ... MNIST"),
        ({"training_config": {"is_eval": False}}, "training_config.is_eval: false is ... MNIST"),
        ({"training_config": {"model_path": "data/gpt2s_exported.msgpack"}},
         'training_config.model_path: "data/gpt2s_exported.msgpack" is ... .msgpack ... transformer_config.model_path'),
        ({"training_config": {}, "lora_config": {"r": 8}}, "lora_config: {'r': 8} is ... LoRA"),
        ({"training_config": {}, "device_config": {"cp_layout": "contiguous"}}, "device_config.cp_layout: ... context"),
        ({"training_config": {}, "bert_config": {}}, "bert_config: {} is a BERT"),
    ],
)  # fmt: skip
def test_keys_of_other_trainers_say_what_they_are(folder: Path, document: dict, facts: str) -> None:
    line = refusal(folder, document)
    assert has_facts(line, facts)
    assert "unknown key" not in line


@pytest.mark.parametrize(
    ("field", "name"),
    [("enable_cp", "context"), ("enable_sp", "sequence"), ("enable_ep", "expert")],
)
def test_other_kinds_of_parallelism_are_refused_by_name_when_they_are_on(
    load: Load, refused: Refuse, field: str, name: str
) -> None:
    line = refused(device_config={"mesh_shape": [1, 2], "enable_tp": True, field: True})
    assert has_facts(line, f"device_config.{field}: true is not supported yet; {name} parallelism")
    assert load(device_config={field: False})[1] == []


@pytest.mark.parametrize(
    "setting", ["grpo_config={}", "training_config.grpo_config={}", "logging_interval=5"]
)
def test_the_command_line_names_other_trainers_too(refused: Refuse, setting: str) -> None:
    assert "Tiermesh does not train that" in refused(setting)


def test_mnist_is_no_regression_even_without_its_own_keys(folder: Path) -> None:
    """Check that the job is refused after each of the keys that were refused has been taken out."""
    training = dict(MNIST)
    for key in ("logging_interval", "is_eval", "model_path"):
        assert f"training_config.{key}" in refusal(
            folder, {"training_config": training, "mlp_config": IMAGES}
        )
        del training[key]
    for document in (
        {"training_config": training, "mlp_config": IMAGES},
        {"training_config": {**training, "mlp_config": IMAGES}},
        {"training_config": {**training, "model_config": "configs/model_configs/mlp_config.yaml"}},
    ):
        line = refusal(folder, document)
        assert has_facts(line, "mlp_config: MNIST's ... training_samples")
        shipped = "; training_config.model_config: read from Tiermesh's own /"
        assert (shipped in line) == ("model_config" in str(document)), "a fallback is said in refusals too"


def test_a_perceptron_of_that_size_may_learn_made_data(load: Load) -> None:
    job, _ = load(training_config={"model_type": "mlp"}, mlp_config={**IMAGES, "training_samples": 500})
    assert job.model == MLPConfig(training_samples=500)
