"""The ways in which tt-train's training configs were written over the years, in small files of our own.

Each file of the first table is a job. `test_upstream_configs.py` checks tt-train's own files by the same rules.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from services.config.load import load_job
from services.config.models import GPT2Config, LlamaConfig
from services.errors import Refused

FLAT = """
training_config:
  project_name: "flat"
  model_type: "gpt2"
  seed: 5489
  model_save_interval: 500
  batch_size: 8
  num_epochs: 1
  max_steps: 5000
  learning_rate: 0.0003
  weight_decay: 0.01
  use_moreh_adamw: true
  use_kahan_summation: false
  transformer_config:
    num_heads: 2
    embedding_dim: 64
    dropout_prob: 0.2
    num_blocks: 1
    vocab_size: 96
    max_sequence_length: 256
    positional_embedding_type: trainable
    runner_type: memory_efficient
    experimental:
      use_composite_layernorm: false
"""
"""2024-12 to 2025-11: the model inside `training_config`, the optimizer's settings flat."""

FLAT_LLAMA_ON_HOSTS = """
training_config:
  project_name: "tiers" # a comment
  model_type: "llama"
  seed: 5489
  model_save_interval: 500
  batch_size: 8
  num_epochs: 1
  max_steps: 5000
  gradient_accumulation_steps: 8
  learning_rate: 0.0003
  weight_decay: 0.01
  use_no_op: false
  use_moreh_adamw: true
  use_clip_grad_norm: false
  clip_grad_norm_max_norm: 1.0
  tokenizer_path: data/some-tokenizer.json
  tokenizer_type: "bpe"
  transformer_config:
    num_heads: 8
    num_groups: 8  # original value was 4
    embedding_dim: 256
    intermediate_dim: 512
    dropout_prob: 0.0
    num_blocks: 1
    weight_tying: "disabled"
    vocab_size: 32000
    max_sequence_length: 256
    runner_type: default
    theta: 500000
    rope_scaling:
      scaling_factor: 32.0
      high_freq_factor: 4.0
      low_freq_factor: 1.0
      original_context_length: 8192

multihost_config:
  enabled: true
  num_workers: 3
  socket_type: fabric

eval_config:
  repetition_penalty: 1.0
  temperature: 0.0
  top_k: 50
  top_p: 1.0

device_config:
  enable_tp: true
  mesh_shape: [1, 8]
"""
"""2025-05 to 2025-11: several hosts and a mesh, in one file."""

FIRST_NAMES = FLAT + "mpi_config:\n  enabled: true\n  num_workers: 2\n"
"""2025-05: the first name of `multihost_config`."""

DEFAULT_TOKENIZER = FLAT + "  tokenizer_type: bpe\n"
"""2025-05 to 2026-04: byte pairs without a path."""

MODEL_FILE = """
training_config:
  project_name: "files"
  model_type: "gpt2"
  seed: 5489
  batch_size: 64
  max_steps: 5000
  learning_rate: 0.0003
  weight_decay: 0.01
  use_moreh_adamw: true
  multihost_config: "multihost_configs/1worker_mpi.yaml"
  model_config: "model_configs/nanogpt.yaml"

device_config:
  enable_ddp: true
  mesh_shape: [1, 8]
"""
"""2026-01: the model and the hosts in files of their own."""

OPTIMIZER_BLOCK = """
training_config:
  project_name: "block"
  seed: 5489
  model_save_interval: 1
  batch_size: 256
  validation_batch_size: 4
  num_epochs: 1
  max_steps: 160
  eval_every: 20
  use_clip_grad_norm: false
  clip_grad_norm_max_norm: 1.0
  tokenizer_type: "char"
  checkpoint_dir: "checkpoints"
  model_config: "${TT_METAL_RUNTIME_ROOT}/tt-train/configs/model_configs/nanollama3.yaml"
  optimizer:
    type: MorehAdamW
    lr: 3e-5
    beta1: 0.9
    beta2: 0.999
    epsilon: 1.0e-8
    weight_decay: 0.01
    amsgrad: false
    kahan_summation: false

scheduler_config:
  max_lr : 1e-4
  min_lr : 3e-5
  warmup_steps : 20
  hold_steps : 1000

device_config:
  enable_ddp: True
  mesh_shape: [32, 1]
"""
"""2026-04: the optimizer as a block, paths by a variable, a column of chips."""

TWO_AXES = """
training_config:
  batch_size: 8
  max_steps: 10
  model_config: "configs/model_configs/llama8b_galaxy_tp_dp.yaml"
  optimizer:
    type: NoOp

device_config:
  enable_tp: true
  enable_ddp: true
  enable_sp: false
  lazy_parameter_init: false
  device_ids: []
  mesh_shape: [8, 4]
"""
"""2026-06: two axes, and keys of strategies that are off."""

TOKEN_IDS = """
training_config:
  project_name: tokens
  seed: 5489
  model_save_interval: 10000
  batch_size: 16
  num_epochs: 1
  max_steps: 1200
  optimizer:
    type: AdamW
    lr: 1.0e-4
    beta2: 0.95
  tokenizer_type: bpe
  data_path: data/tokenized_ids.yaml
  model_config: "${TT_METAL_RUNTIME_ROOT}/tt-train/configs/model_configs/llama8b.yaml"
  scheduler_type: warmup_linear
device_config:
  enable_fsdp: true
  enable_tp: true
  mesh_shape: [8, 4]
"""
"""2026-01 to 2026-06: ids in a file, the vocabulary in the model's."""

JAX = """
training_config:
  micro_batch_size: 8
  gradient_accumulation_steps: 4
  sync_gradients_every: 1
  mixed_precision: bf16
  profile_communication: false
  max_steps: 10
transformer_config: {num_heads: 4, embedding_dim: 128}
device_config:
  mesh_shape: [[2, 4], ["fsdp", "tp"]]
"""
"""Keys of JAX trainers."""

ACCEPTED = {
    "flat": FLAT,
    "flat llama on hosts": FLAT_LLAMA_ON_HOSTS,
    "first names": FIRST_NAMES,
    "default tokenizer": DEFAULT_TOKENIZER,
    "token ids": TOKEN_IDS,
    "space-separated ids": TOKEN_IDS.replace("ids.yaml", "ids.csv"),
    "model file": MODEL_FILE,
    "optimizer block": OPTIMIZER_BLOCK,
    "two axes": TWO_AXES,
    "jax": JAX,
}


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shakespeare.txt").write_text("Speak, speak. " * 1000)
    for name in ("gpt2", "some"):
        (tmp_path / f"{name}-tokenizer.json").write_text(
            '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'
        )
    ids = list(range(4096))
    (tmp_path / "tokenized_ids.csv").write_text(" ".join(map(str, ids)))
    (tmp_path / "tokenized_ids.yaml").write_text(
        f"tokenizer_vocab_size: 128256\ndata_length: 4096\ntokens: {ids}\n"
    )
    monkeypatch.setenv("TIERMESH_DATA", str(tmp_path))


def load(folder: Path, text: str) -> tuple:
    (folder / "job.yaml").write_text(text)
    return load_job(folder / "job.yaml")


@pytest.mark.parametrize("name", ACCEPTED)
def test_a_dialect_is_a_job(folder: Path, name: str) -> None:
    job, notices = load(folder, ACCEPTED[name])
    assert job.from_json(job.to_json()) == job
    assert all(len(notice) <= 300 for notice in notices)
    assert len({notice.partition(": ")[0] for notice in notices}) == len(notices)


def test_the_dialects_mean_what_they_say(folder: Path) -> None:
    flat = load(folder, FLAT)[0]
    assert isinstance(flat.model, GPT2Config)
    # One epoch of the text's 12,344 windows ends before max_steps.
    assert (flat.steps, flat.optimizer.lr, flat.model.runner_type) == (1543, 3e-4, "memory_efficient")
    hosts = load(folder, FLAT_LLAMA_ON_HOSTS)[0]
    assert isinstance(hosts.model, LlamaConfig)
    assert (hosts.micro_batches, hosts.device.tensor_parallel_size, hosts.model.theta) == (24, 8, 5e5)
    assert hosts.model.rope_scaling is not None
    files = load(folder, MODEL_FILE)[0]
    assert (files.num_workers, files.device.data_parallel_size, files.model.embedding_dim) == (1, 8, 384)
    block = load(folder, OPTIMIZER_BLOCK)[0]
    assert (block.validation_batch_size, block.optimizer.lr, block.schedule.type) == (32, 1e-4, "speedrun")
    axes = load(folder, TWO_AXES)[0]
    assert (axes.device.data_parallel_size, axes.device.tensor_parallel_size) == (8, 4)
    assert load(folder, FIRST_NAMES)[0].num_workers == 2
    tokens = load(folder, TOKEN_IDS)[0]
    assert (tokens.device.shard_parameters, tokens.model.vocab_size) == (True, 128256)
    jax = load(folder, JAX)[0]
    assert (jax.batch_size, jax.micro_batches, jax.device.dtype) == (8, 4, "bfloat16")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (FLAT.replace('"gpt2"', '"qwen3"'), 'training_config.model_type: "qwen3" is not supported yet'),
        (FLAT_LLAMA_ON_HOSTS.replace("num_groups: 8", "num_groups: 4"), "transformer_config.num_groups: 4 given"),
        (FLAT_LLAMA_ON_HOSTS.replace("num_heads: 8", "num_heads: 4").replace("num_groups: 8", "num_groups: 4"),
         "transformer_config.num_heads: 4 given"),
        (FLAT_LLAMA_ON_HOSTS.replace("fabric", "fabric\n  pipeline_parallel_config: {num_blocks: 1}"),
         "multihost_config.pipeline_parallel_config.blocks_per_rank: missing"),
        (MODEL_FILE.replace("batch_size: 64", "batch_size: 12"), "training_config.batch_size: 12 given"),
        (OPTIMIZER_BLOCK.replace("MorehAdamW", "MuonWithAdamW"),
         'training_config.optimizer.type: "MuonWithAdamW" is not supported yet'),
        (TWO_AXES.replace("enable_sp: false", "enable_sp: true"),
         "device_config.enable_sp: true is not supported yet; sequence parallelism"),
        (JAX.replace("every: 1", "every: 4"), "training_config.sync_gradients_every: 4 is not supported yet"),
    ],
)  # fmt: skip
def test_what_a_dialect_may_not_say_is_refused_by_name(folder: Path, text: str, line: str) -> None:
    with pytest.raises(Refused) as caught:
        load(folder, text)
    assert line in str(caught.value)
