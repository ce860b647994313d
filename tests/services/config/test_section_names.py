"""Sections under their other names: those of tt-train's first configs, and those of JAX trainers."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.config.load import load_job_document, load_job_with_origins
from services.errors import Refused
from tests.support.facts import has_facts

JAX = """\
training:
  data_path: corpus.txt
  max_steps: 10
  micro_batch_size: 8
  gradient_accumulation_steps: 4
  sync_gradients_every: 1
  mixed_precision: bf16
  profile_communication: false
model:
  mesh_shape: [[2, 4], ["fsdp", "tp"]]
  num_heads: 4
  embedding_dim: 128
"""


def test_sections_of_jax_trainers_are_read(folder: Path) -> None:
    (folder / "job.yaml").write_text(JAX)
    (job, notices, *_), origins = load_job_with_origins(folder / "job.yaml")
    assert notices == []
    assert (job.batch_size, job.micro_batches, job.device.dtype) == (8, 4, "bfloat16")
    assert (job.device.mesh_shape, job.device.shard_parameters, job.device.tensor_parallel_size) == (
        (2, 4),
        True,
        4,
    )
    assert job.model.embedding_dim == 128
    for key in ("training_config.max_steps", "device_config.mesh_shape", "transformer_config.num_heads"):
        assert origins.find(key) == str(folder / "job.yaml")


@pytest.mark.parametrize("setting", ["training.max_steps=7", "max_steps=7", "training_config.max_steps=7"])
def test_the_command_line_knows_those_names(folder: Path, setting: str) -> None:
    (folder / "job.yaml").write_text(JAX)
    mesh = 'model.mesh_shape=[[1, 2], ["fsdp", "tp"]]'
    (job, _, *_), _ = load_job_with_origins(folder / "job.yaml", [setting, mesh, "model.num_heads=2"])
    assert (job.steps, job.device.mesh_shape, job.model.num_heads) == (7, (1, 2), 2)


def test_the_first_name_of_the_hosts_is_read(folder: Path) -> None:
    document = {
        "training_config": {"data_path": "corpus.txt"},
        "mpi_config": {"enabled": True, "num_workers": 2},
    }
    assert load_job_document(document, folder=folder)[0].num_workers == 2
    assert (
        load_job_document(document, folder=folder, overrides=["mpi_config.num_workers=3"])[0].num_workers == 3
    )


@pytest.mark.parametrize(
    ("document", "facts"),
    [
        ({"training": {}, "training_config": {}}, "training: given together with training_config"),
        ({"training_config": {}, "mpi_config": {}, "multihost_config": {"enabled": True}},
         "mpi_config: given together with multihost_config"),
        ({"training": {}, "model": {"mesh_shape": [1, 2]}, "device_config": {"mesh_shape": [1, 1]}},
         "model.mesh_shape: [1, 2] ... device_config.mesh_shape"),
        ({"training": {}, "model": {"hidden": 3}}, "transformer_config.hidden: unknown key"),
        ({"training": {}, "model": "gpt2"}, "model: unknown key"),
    ],
)  # fmt: skip
def test_a_section_under_two_names_is_refused(folder: Path, document: dict, facts: str) -> None:
    with pytest.raises(Refused) as caught:
        load_job_document(document, folder=folder)
    assert has_facts(str(caught.value), facts)


@pytest.mark.parametrize("prefix", ["", "training_config."])
@pytest.mark.parametrize("inner", ["", "transformer_config."])
def test_a_model_is_reached_by_the_key_that_names_its_file(folder: Path, prefix: str, inner: str) -> None:
    (folder / "model.yaml").write_text("transformer_config: {num_heads: 2, embedding_dim: 64}")
    document = {"training_config": {"data_path": "corpus.txt", "model_config": "model.yaml"}}
    setting = f"{prefix}model_config.{inner}embedding_dim=32"
    assert load_job_document(document, folder=folder, overrides=[setting])[0].model.embedding_dim == 32


def test_a_nested_path_is_replaced_by_the_section_s_name(folder: Path) -> None:
    for workers in (2, 3):
        (folder / f"{workers}.yaml").write_text(
            f"multihost_config: {{enabled: true, num_workers: {workers}}}"
        )
    document = {"training_config": {"data_path": "corpus.txt", "multihost_config": "2.yaml"}}
    assert (
        load_job_document(document, folder=folder, overrides=["multihost_config=3.yaml"])[0].num_workers == 3
    )
