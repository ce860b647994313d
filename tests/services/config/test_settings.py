"""Every field of a job is listed under a key that users can write, with its origin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.config.load import load_job_with_origins
from services.config.origins import COMMAND_LINE
from services.config.refusals import yaml_keys
from services.config.sections import SECTIONS
from services.config.settings import DATA, DEFAULT, TT_TRAIN_DEFAULT, Setting, list_settings

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"transformer_config": {}},
    "llama": {"training_config": {"model_type": "llama"}, "transformer_config": {"embedding_dim": 192}},
    "mlp": {"training_config": {"model_type": "mlp"}, "mlp_config": {}},
    "linear_regression": {"training_config": {"model_type": "linear_regression"}},
}


@pytest.fixture
def settings_of(load: Callable[..., Any], folder: Path) -> Callable[..., dict[str, Setting]]:
    """Return a function that returns the settings of a config with the given sections, by key."""

    def settings_of(*overrides: str, **sections: Any) -> dict[str, Setting]:
        load(*overrides, **sections)
        (config, _, *_), origins = load_job_with_origins(folder / "job.yaml", overrides)
        listed = list_settings(config, origins)
        assert len({each.key for each in listed}) == len(listed)
        return {each.key: each for each in listed}

    return settings_of


@pytest.mark.parametrize("model", MODELS)
def test_every_setting_has_a_key_that_users_can_write(
    model: str, settings_of: Callable[..., dict[str, Setting]]
) -> None:
    for key in settings_of(**MODELS[model]):
        section, name, *_ = key.split(".")
        assert name in [*yaml_keys(SECTIONS[section]), "model_type"], key


def test_keys_of_jax_trainers_are_origins_too(
    settings_of: Callable[..., dict[str, Setting]], folder: Path
) -> None:
    found = settings_of(training_config={"micro_batch_size": 8, "mixed_precision": "bf16"})
    for key, value in (("training_config.batch_size", 8), ("device_config.dtype", "bfloat16")):
        assert (found[key].value, found[key].origin) == (value, str(folder / "job.yaml"))


def test_origins_are_the_file_the_command_line_and_two_kinds_of_default(
    settings_of: Callable[..., dict[str, Setting]], folder: Path
) -> None:
    found = settings_of(
        "eval_every=7",
        training_config={"max_steps": 11, "learning_rate": 0.5, "start_from": {"job": "job-7"}},
        device_config={"trace": False},
    )
    shown = {key: (each.value, each.origin) for key, each in found.items()}
    file = str(folder / "job.yaml")
    assert shown["training_config.max_steps"] == (11, file)
    assert shown["training_config.start_from.job"] == ("job-7", file)
    assert shown["training_config.optimizer.lr"] == (0.5, file), "in the older spelling"
    assert shown["training_config.eval_every"] == (7, COMMAND_LINE)
    assert shown["training_config.batch_size"] == (4, TT_TRAIN_DEFAULT)
    assert shown["training_config.exact"] == (True, DEFAULT)
    assert shown["device_config.trace"] == (False, file)
    assert shown["training_config.data_path"] == (str(folder / "corpus.txt"), file)


def test_what_was_written_is_shown_where_the_job_has_something_else(
    settings_of: Callable[..., dict[str, Setting]], folder: Path
) -> None:
    found = settings_of(
        training_config={
            "learning_rate": 0.5, "validation_batch_size": 3, "use_clip_grad_norm": False,
            "clip_grad_norm_max_norm": 1.0, "num_epochs": 1,
        },
        transformer_config={"vocab_size": 96, "weight_tying": "enabled"},
        device_config={"mesh_shape": [1, 4], "enable_ddp": True},
    )  # fmt: skip
    shown = {key: (each.value, each.written) for key, each in found.items()}
    assert shown["training_config.optimizer.lr"] == (0.5, "from training_config.learning_rate: 0.5")
    assert shown["training_config.validation_batch_size"] == (4, "written: 3")
    assert shown["training_config.max_steps"] == (868, "")
    assert shown["transformer_config.vocab_size"] == (7, "written: 96")
    assert shown["transformer_config.weight_tying"] == (True, 'written: "enabled"')
    assert shown["training_config.use_clip_grad_norm"] == (False, "")
    assert "training_config.clip_grad_norm_max_norm" not in shown
    assert shown["device_config.mesh_shape"] == ([1, 4], "")


def test_only_settings_that_the_job_reads_are_shown(settings_of: Callable[..., dict[str, Setting]]) -> None:
    def names(**training: Any) -> set[str]:
        found = settings_of(training_config=training)
        parts = [key.split(".") for key in found]
        return {
            each[-1]
            for each in parts
            if each[:2] == ["training_config", "optimizer"] or each[0] == "scheduler_config"
        }

    adamw = {"type", "lr", "beta1", "beta2", "epsilon", "weight_decay", "weight_decay_on", "amsgrad"}
    assert names() == adamw
    assert names(momentum=0.9, scheduler_type="step") == {
        "type", "lr", "momentum", "dampening", "nesterov", "weight_decay", "weight_decay_on", "step_size", "gamma",
    }  # fmt: skip
    assert names(use_no_op=True) == {"type"}
    assert names(scheduler_type="warmup_cosine") == adamw | {"warmup_steps", "min_lr"}


def test_a_speedrun_names_what_chose_it_and_its_peak(
    settings_of: Callable[..., dict[str, Setting]], folder: Path
) -> None:
    found = settings_of(training_config={"learning_rate": 0.5}, scheduler_config={"max_lr": 0.25})
    rate, kind = found["training_config.optimizer.lr"], found["training_config.scheduler_type"]
    assert (rate.value, rate.written) == (0.25, "from scheduler_config.max_lr: 0.25")
    assert (kind.value, kind.origin) == ("speedrun", str(folder / "job.yaml"))
    assert kind.written == "from scheduler_config: {'max_lr': 0.25}"


def test_the_vocabulary_follows_from_the_data_if_nothing_gives_it(
    settings_of: Callable[..., dict[str, Setting]],
) -> None:
    found = settings_of()["transformer_config.vocab_size"]
    assert (found.value, found.origin) == (7, DATA)


def test_a_llama_shows_the_width_that_follows(settings_of: Callable[..., dict[str, Setting]]) -> None:
    assert settings_of(**MODELS["llama"])["transformer_config.intermediate_dim"].value == 512
