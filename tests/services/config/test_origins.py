"""Each setting's origin: the job's file, an included one, the command line, or none."""

from __future__ import annotations

from pathlib import Path

from services.config.load import load_job_with_origins
from services.config.origins import COMMAND_LINE, Origins

JOB = """\
training_config:
  data_path: corpus.txt
  batch_size: 8
  model_config: model.yaml
  optimizer: {type: AdamW, lr: 0.001}
  multihost_config: {enabled: true, num_workers: 2}
device_config: {dtype: float32}
eval_config: sampling.yaml
"""


def load_origins(folder: Path, *overrides: str) -> Origins:
    (folder / "job.yaml").write_text(JOB)
    (folder / "model.yaml").write_text("transformer_config: {num_heads: 2, embedding_dim: 64}\n")
    (folder / "sampling.yaml").write_text("eval_config: {top_k: 3}\n")
    return load_job_with_origins(folder / "job.yaml", overrides)[1]


def test_settings_come_from_the_file_that_has_them(folder: Path) -> None:
    origins = load_origins(folder)
    job, model, sampling = (str(folder / name) for name in ("job.yaml", "model.yaml", "sampling.yaml"))
    assert origins.find("training_config.batch_size") == job
    assert origins.find("training_config.optimizer.lr") == job
    assert origins.find("device_config.dtype") == job
    assert origins.find("multihost_config.num_workers") == job, "nested in training_config"
    assert origins.find("transformer_config.embedding_dim") == model
    assert origins.find("eval_config.top_k") == sampling


def test_settings_that_were_not_given_have_no_origin(folder: Path) -> None:
    origins = load_origins(folder)
    for key in ("training_config.max_steps", "training_config.optimizer.beta1", "scheduler_config.min_lr"):
        assert origins.find(key) is None


def test_overrides_come_from_the_command_line(folder: Path) -> None:
    overrides = ("batch_size=16", "optimizer.lr=0.1", "embedding_dim=128", "mesh_shape=[1,1]")
    origins = load_origins(folder, *overrides)
    for key in (
        "training_config.batch_size",
        "training_config.optimizer.lr",
        "transformer_config.embedding_dim",
        "device_config.mesh_shape",
    ):
        assert origins.find(key) == COMMAND_LINE
    assert origins.find("training_config.optimizer.type") == str(folder / "job.yaml")
    assert origins.find("transformer_config.num_heads") == str(folder / "model.yaml")


def test_a_replaced_mapping_hides_what_it_had(folder: Path) -> None:
    origins = load_origins(folder, "training_config.optimizer={type: SGD}")
    assert origins.find("training_config.optimizer.type") == COMMAND_LINE
    assert origins.find("training_config.optimizer.lr") is None
