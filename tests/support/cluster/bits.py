"""Jobs of the cluster tests, and the part of their results that must be equal bit by bit."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from protos import jobs_pb2 as jobs
from services.config.load import load_job

STEPS = 12
CHECKPOINT_EVERY = 3
MICRO_BATCHES = 7


def write_corpus(folder: Path) -> Path:
    """Write a text of about 12,000 characters of made-up words; return its path."""
    draw = random.Random(7)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    vocabulary = ["".join(draw.choices(letters, k=draw.randint(2, 8))) for _ in range(300)]
    lines: list[str] = []
    while sum(map(len, lines)) < 12_000:
        lines.append(" ".join(draw.choices(vocabulary, k=10)).capitalize() + ".")
    path = folder / "corpus.txt"
    path.write_text("\n".join(lines))
    return path


def gpt_config(corpus: Path, **training: Any) -> dict[str, Any]:
    """Return a small GPT-2 with dropout and clipping, 7 micro-batches a step, and a layout of two chunks."""
    return {
        "training_config": {
            "project_name": "exact",
            "seed": 11,
            "data_path": str(corpus),
            "tokenizer_type": "char",
            "batch_size": 2,
            "validation_batch_size": 16,
            "max_steps": STEPS,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "model_save_interval": CHECKPOINT_EVERY,
            "use_clip_grad_norm": True,
            "clip_grad_norm_max_norm": 0.5,
            "optimizer": {"type": "AdamW", "lr": 3.0e-3, "weight_decay": 0.1},
            **training,
        },
        "transformer_config": {
            "model_type": "gpt2",
            "num_heads": 5,
            "embedding_dim": 160,
            "dropout_prob": 0.1,
            "num_blocks": 2,
            "max_sequence_length": 32,
        },
    }


def llama_config(corpus: Path, **training: Any) -> dict[str, Any]:
    """Return a small Llama that recomputes its blocks, on a mesh that shards parameters and splits layers."""
    return {
        **gpt_config(corpus, project_name="llama", max_steps=CHECKPOINT_EVERY, **training),
        "transformer_config": {
            "model_type": "llama",
            "runner_type": "memory_efficient",
            "num_heads": 4,
            "num_groups": 2,
            "embedding_dim": 128,
            "dropout_prob": 0.1,
            "num_blocks": 3,
            "max_sequence_length": 32,
        },
        "device_config": {"mesh_shape": [[2, 2], ["fsdp", "tp"]]},
    }


def deep_config(corpus: Path, blocks: int, *, tied: bool = False, **training: Any) -> dict[str, Any]:
    """Return `gpt_config` with this many narrow blocks, for jobs that a pipeline splits."""
    config = gpt_config(corpus, **training)
    config["transformer_config"] |= {"num_blocks": blocks, "weight_tying": "enabled" if tied else "disabled"}
    return config


def split_config(
    config: dict[str, Any], blocks_per_stage: tuple[int, ...], *, pipelines: int = 1, **pipeline: Any
) -> dict[str, Any]:
    """Return a config with stages of so many blocks, or one without a pipeline that has the same micro-batches.

    Args:
        config: the config.
        blocks_per_stage: number of blocks of each stage; empty for no pipeline.
        pipelines: number of pipelines.
        **pipeline: further settings of the pipeline.
    """
    hosts: dict[str, Any] = {"enabled": True, "num_workers": pipelines * (len(blocks_per_stage) or 1)}
    if blocks_per_stage:
        ranks = dict(enumerate(blocks_per_stage))
        hosts["pipeline_parallel_config"] = {"blocks_per_rank": ranks, **pipeline}
    return config | {"multihost_config": hosts}


def regression_config(**training: Any) -> dict[str, Any]:
    """Return a linear regression, a job of very cheap steps."""
    return {
        "training_config": {
            "project_name": "regression",
            "model_type": "linear_regression",
            "batch_size": 8,
            "validation_batch_size": 8,
            "max_steps": 5,
            "gradient_accumulation_steps": 2,
            "optimizer": {"type": "SGD", "lr": 0.01},
            **training,
        },
    }


def sized_config(inputs: int, outputs: int, **training: Any) -> dict[str, Any]:
    """Return `regression_config` with inputs × outputs parameters, for workers with an invented layout of that size."""
    sizes = {"num_features": inputs, "num_targets": outputs, "bias": False, "training_samples": 100}
    return {**regression_config(**training), "linear_regression_config": sizes}


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    """Write the config as YAML; return its path."""
    path = folder / f"{config['training_config']['project_name']}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def spec_of(folder: Path, config: dict[str, Any]) -> str:
    """Return the job as the JSON text that `submit` sends."""
    return load_job(write_config(folder, config), [])[0].to_json()


@dataclass(frozen=True)
class Bits:
    """Result of a finished job, reduced to what must not depend on faults.

    The last step's loss is excluded. It is lost if the aggregator is killed right after that step.
    """

    model_sha256: str
    optimizer_sha256: str
    validation_loss: float
    loss: float = field(compare=False)


def bits(job: jobs.Job) -> Bits:
    """Return the result of a job that succeeded, from its last checkpoint on disk."""
    folder = Path(job.checkpoint)
    model, optimizer = (
        hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("model.safetensors", "optimizer.safetensors")
    )
    assert model == job.model_sha256
    return Bits(model, optimizer, job.validation_loss, job.loss)
