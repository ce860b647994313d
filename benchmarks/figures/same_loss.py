"""same_loss_as_peer: losses of the first steps, against plain PyTorch from the same weights on the same batches."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np

from benchmarks.harness.job_settings import BUILD, language_model, load_setting, peer_model
from benchmarks.harness.local_cluster import result_of, start_local, state_dir, step_losses
from benchmarks.harness.peer import peer_command, peer_python
from benchmarks.harness.report import report
from services.config.job import JobConfig
from services.errors import Failed
from training.data.load import (
    load_corpus,
)
from training.data.tokens import (
    TokenDataset,
    TokenSource,
)

NAME = "same_loss_as_peer"
BOUND = 1e-4
STEPS = 50


def run() -> bool:
    """Train in a cluster, let the peer repeat it from step-00000000, and compare."""
    peer_python()
    state = state_dir(NAME)
    limit = f"training_config.max_steps={STEPS}"
    config = load_setting(limit)
    result = result_of(start_local(state, 2, 2, limit), state)
    ours = step_losses(state, result["job"])
    peers = _peer_losses(config, Path(result["checkpoint"]).with_name("step-00000000"))
    if len(ours) != STEPS or len(peers) != STEPS:
        raise Failed(f"losses: {len(ours)} of the cluster, {len(peers)} of the peer, expected {STEPS} each")
    differences = [abs(a - b) for a, b in zip(ours, peers, strict=True)]
    return report(
        NAME,
        max(differences),
        BOUND,
        f"step 1: ours {ours[0]:.7f}, PyTorch {peers[0]:.7f}; step {STEPS}: {ours[-1]:.7f}, {peers[-1]:.7f}",
        decimals=7,
    )


def _peer_losses(config: JobConfig, checkpoint: Path) -> list[float]:
    assert config.data is not None
    sources, tokenizer = load_corpus(config.data, None)
    assert tokenizer is not None  # the setting's corpus is a text
    batches = BUILD / "batches.npz"
    _export_batches(config, sources, batches)
    optimizer, schedule = config.optimizer, config.schedule
    setting = {
        "model": peer_model(config, tokenizer.size),
        "checkpoint": str(checkpoint),
        "batches": str(batches),
        "lr": optimizer.lr,
        "beta1": optimizer.beta1,
        "beta2": optimizer.beta2,
        "epsilon": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "clip_grad_norm": config.clip_grad_norm,
        "min_lr": schedule.min_lr,
        "warmup_steps": schedule.warmup_steps,
        "total_steps": schedule.total_steps,
    }
    done = subprocess.run(peer_command("losses", setting), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"the peer: {(done.stderr.strip().splitlines() or ['no output'])[-1]}")
    losses: list[float] = json.loads(done.stdout)
    return losses


def _export_batches(config: JobConfig, sources: list[TokenSource], path: Path) -> None:
    """Write the batches that the workers train on: int64 [steps, micro-batches, sequences, tokens]."""
    data = TokenDataset(
        sources,
        seed=config.seed,
        batch_size=config.batch_size,
        validation_batch_size=config.validation_batch_size,
        tokens=language_model(config).max_sequence_length,
    )
    steps = [
        [data.micro_batch(step, index) for index in range(config.micro_batches)]
        for step in range(config.steps)
    ]
    inputs = np.array([[batch.inputs for batch in step] for step in steps], np.int64)
    targets = np.array([[batch.targets for batch in step] for step in steps], np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, inputs=inputs, targets=targets)
