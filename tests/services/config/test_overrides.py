"""`key=value` on the command line: dotted or short keys, applied to the job and its includes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from services.config.load import load_job_document
from tests.support.facts import has_facts

Load = Callable[..., tuple]
Refuse = Callable[..., str]


def test_dotted_keys_and_short_ones(load: Load) -> None:
    job, _ = load(
        "training_config.max_steps=7", "batch_size=2", "optimizer.type=SGD", "lr=0.5", "num_blocks=1",
        "multihost_config.enabled=true", "num_workers=3",
    )  # fmt: skip
    assert (job.steps, job.batch_size, job.optimizer.type, job.optimizer.lr) == (7, 2, "sgd", 0.5)
    assert (job.model.num_blocks, job.num_workers) == (1, 3)


@pytest.mark.parametrize(
    "training", [{"optimizer": {"weight_decay": 0.1}}, {"learning_rate": 0.1, "weight_decay": 0.1}]
)
def test_a_short_key_means_the_one_that_the_file_gives(load: Load, training: dict) -> None:
    assert load("weight_decay=0.25", training_config=training)[0].optimizer.weight_decay == 0.25


def test_the_last_of_two_overrides_wins(load: Load) -> None:
    assert load("max_steps=7", "max_steps=8")[0].steps == 8


def test_values_are_yaml(load: Load) -> None:
    job, _ = load("mesh_shape=[1, 2]", "enable_ddp=true", "project_name=a=b", "lr=1e-2")
    assert (job.device.mesh_shape, job.name, job.optimizer.lr) == ((1, 2), "a=b", 0.01)


def test_included_files_are_overridden(load: Load, folder: Path) -> None:
    (folder / "tiny.yaml").write_text("transformer_config: {num_heads: 2, embedding_dim: 8}")
    training = {"model_config": "tiny.yaml"}
    job, _ = load("num_heads=4", training_config=training)
    assert (job.model.num_heads, job.model.embedding_dim) == (4, 8)


def test_which_file_is_included_can_be_overridden(load: Load, folder: Path) -> None:
    (folder / "tiny.yaml").write_text("transformer_config: {num_heads: 2, embedding_dim: 8}")
    (folder / "other.yaml").write_text("transformer_config: {num_heads: 2, embedding_dim: 16}")
    job, _ = load("training_config.model_config=other.yaml", training_config={"model_config": "tiny.yaml"})
    assert job.model.embedding_dim == 16


@pytest.mark.parametrize(
    ("section", "inner", "setting", "value"),
    [
        ("device_config", {"mesh_shape": [1, 2], "enable_ddp": True}, "mesh_shape=[1, 4]", (1, 4)),
        ("scheduler_config", {"min_lr": 0.0, "warmup_steps": 3}, "warmup_steps=5", 5),
        ("eval_config", {"top_k": 50}, "top_k=40", 40),
        ("multihost_config", {"enabled": True, "num_workers": 2}, "num_workers=3", 3),
        ("transformer_config", {"num_heads": 2, "embedding_dim": 8}, "num_heads=4", 4),
    ],
)
def test_a_section_from_a_file_is_reached(
    load: Load, folder: Path, section: str, inner: dict, setting: str, value: object
) -> None:
    (folder / "part.yaml").write_text(yaml.safe_dump({section: inner}))
    training = {"scheduler_type": "warmup_cosine", "batch_size": 4}
    for name in (setting, f"{section}.{setting}"):
        job, _ = load(name, training_config=training, **{section: "part.yaml"})
        found = (
            job.device.mesh_shape, job.schedule.warmup_steps, job.sampling.top_k, job.num_workers,
            getattr(job.model, "num_heads", None),
        )  # fmt: skip
        assert value in found


def test_a_section_may_be_changed_to_that_of_a_file(load: Load, folder: Path) -> None:
    (folder / "mesh.yaml").write_text("device_config: {mesh_shape: [1, 2], enable_ddp: true}")
    settings = ("device_config=mesh.yaml", "threads=2")
    for given in ({"mesh_shape": [1, 1]}, "other.yaml", None):
        device = load(*settings, device_config=given)[0].device
        assert (device.mesh_shape, device.threads) == ((1, 2), 2)
    assert load("device_config=", device_config={"threads": 3})[0].device.threads == 1


@pytest.mark.parametrize("given", ["three.yaml", {"enabled": True, "num_workers": 3}])
def test_a_section_nested_in_training_config_is_reached(load: Load, folder: Path, given: object) -> None:
    (folder / "three.yaml").write_text("multihost_config: {enabled: true, num_workers: 3}")
    for setting in ("num_workers=5", "training_config.multihost_config.num_workers=5"):
        assert load(setting, training_config={"multihost_config": given})[0].num_workers == 5


def test_the_document_is_not_changed(folder: Path) -> None:
    document = {
        "training_config": {"data_path": "corpus.txt", "optimizer": {"lr": 0.1}},
        "transformer_config": {},
    }
    before = copy.deepcopy(document)
    job, _ = load_job_document(document, folder=folder, overrides=["lr=0.2", "num_blocks=1", "num_workers=2"])
    assert job.optimizer.lr == 0.2
    assert document == before


@pytest.mark.parametrize(
    ("override", "facts"),
    [
        ("max_steps", '"max_steps": no setting, expected key=value'),
        ("=3", '"=3": no setting, expected key=value'),
        ("max_step=3", '"max_step=3": ... max_steps'),
        ("zzz=3", '"zzz=3": no setting has this name'),
        (
            "bias=false",
            '"bias=false": ... transformer_config.bias or linear_regression_config.bias',
        ),
        ("training_config=3", '"training_config=3": expected a key of the section'),
        (
            "training_config.max_stepz=3",
            "training_config.max_stepz: unknown key (value 3) ... max_steps",
        ),
        ("max_steps=[1", '"max_steps=[1": line 1'),
        ("max_steps=", "training_config.max_steps: null given, expected a whole number"),
        ("data_path.x=3", 'training_config.data_path is "corpus.txt", expected a mapping'),
        ("max_steps=0x" + "f" * 4000, "training_config.max_steps: (a number of 16000 bits) given"),
        ("max_steps=" + "9" * 9000, "more than 4096 characters"),
    ],
)
def test_a_bad_override_is_refused(refused: Refuse, override: str, facts: str) -> None:
    assert has_facts(refused(override), facts)
