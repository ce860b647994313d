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
from services.config.settings import DEFAULT, TT_TRAIN_DEFAULT, Setting, list_settings

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
        config, _, origins = load_job_with_origins(folder / "job.yaml", overrides)
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
    assert shown["training_config.total_steps"] == (11, file), "follows from max_steps"
    assert shown["training_config.batch_size"] == (4, TT_TRAIN_DEFAULT)
    assert shown["training_config.exact"] == (True, DEFAULT)
    assert shown["device_config.trace"] == (False, file)
    assert shown["training_config.data_path"] == (str(folder / "corpus.txt"), file)
