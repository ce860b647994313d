"""Every config that ships loads, and those with a promise keep it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.config import JobConfig, load_job
from services.config.load import job_from
from services.config.places import SHIPPED_ROOT

CONFIGS = SHIPPED_ROOT / "configs"


@pytest.fixture
def shakespeare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shakespeare.txt").write_text("Speak, speak. " * 1000)
    monkeypatch.setenv("TIERMESH_DATA", str(tmp_path))


@pytest.mark.usefixtures("shakespeare")
@pytest.mark.parametrize("path", sorted(CONFIGS.glob("training_configs/*.yaml")), ids=lambda path: path.stem)
def test_training_configs_load_without_a_notice(path: Path) -> None:
    job, notices = load_job(path)
    assert notices == []
    assert JobConfig.from_json(job.to_json()) == job


@pytest.mark.parametrize("kind", ["device", "multihost", "eval"])
def test_parts_can_be_included_by_any_job(kind: str, tmp_path: Path) -> None:
    for path in sorted(CONFIGS.glob(f"{kind}_configs/*.yaml")):
        document = {
            "training_config": {"batch_size": 32, "data_path": "builtin:python-reference"},
            "transformer_config": {},
            f"{kind}_config": f"{kind}_configs/{path.name}",
        }
        _, notices = job_from(document, folder=tmp_path)
        assert notices == []


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("model_configs/*.yaml")), ids=lambda path: path.stem)
def test_model_configs_can_be_included_by_any_job(path: Path, tmp_path: Path) -> None:
    training = {"model_config": path.name}
    if path.stem != "linear_regression":
        training["data_path"] = "builtin:python-reference"
    _, notices = job_from({"training_config": training}, folder=tmp_path)
    assert notices == []


@pytest.mark.usefixtures("shakespeare")
def test_the_nanogpt_setting_is_nanogpt_s() -> None:
    job, _ = load_job(CONFIGS / "training_configs" / "nanogpt_shakespeare_char_cpu.yaml")
    model, optimizer, schedule = job.model, job.optimizer, job.schedule
    assert (model.num_blocks, model.num_heads, model.embedding_dim, model.max_sequence_length) == (
        4,
        4,
        128,
        64,
    )
    assert (model.dropout_prob, model.bias, model.weight_tying, model.activation) == (
        0.0,
        False,
        False,
        "gelu",
    )
    assert (job.sequences_per_step, job.micro_batches, job.steps) == (12, 2, 2000)
    assert (optimizer.type, optimizer.lr, optimizer.beta1, optimizer.beta2) == ("adamw", 1e-3, 0.9, 0.99)
    assert (optimizer.weight_decay, optimizer.weight_decay_on, job.clip_grad_norm) == (0.1, "matrices", 1.0)
    assert (schedule.type, schedule.warmup_steps, schedule.total_steps) == ("warmup_cosine", 100, 2000)
    assert schedule.min_lr == 1e-4


@pytest.mark.usefixtures("shakespeare")
def test_a_short_trial_of_it_follows_the_same_learning_rates() -> None:
    path = CONFIGS / "training_configs" / "nanogpt_shakespeare_char_cpu.yaml"
    assert load_job(path, ["max_steps=50"])[0].schedule == load_job(path)[0].schedule


def test_the_demo_needs_no_data() -> None:
    job, _ = load_job(CONFIGS / "training_configs" / "demo.yaml")
    assert job.data is not None
    assert (job.data.path, job.micro_batches) == ("builtin:python-reference", 2)
