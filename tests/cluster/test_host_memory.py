"""The memory that `tiermesh validate` gives for each role is what its process takes, beside what it takes when idle."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos import jobs_pb2 as jobs
from services.config.load import load_job_document
from services.config.parameters import count_largest
from services.sizing.device_memory import estimate_device_memory
from services.sizing.host_memory import estimate_host_memory
from tests.support.cluster.daemon import Daemon
from tests.support.cluster.harness import Cluster

WIDTH, LAYERS = 2048, 5
COPY_BYTES = 4 * LAYERS * WIDTH * WIDTH
TOLERANCES = {"optimizer": 0.05}
"""Relative difference by role, where it is not 0.1: an optimizer that stated one copy too many would be 12 % off."""
WINDOWS_BYTES = 48 << 20
VARYING_BYTES = {"worker": COPY_BYTES, "aggregator": WINDOWS_BYTES, "shard": WINDOWS_BYTES}
"""Part of what is stated that depends on timing: a worker's second sum, and chunks that wait for another role."""


def memory_bytes(daemon: Daemon, field: str) -> int:
    """Return a field of the process's memory: VmRSS is its memory now, VmHWM its peak."""
    lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


@pytest.mark.slow  # beside other work, messages wait for processors and take more than is stated
@pytest.mark.parametrize(("tiers", "shards"), [(3, 0), (2, 0), (2, 2)])
def test_each_role_takes_the_memory_that_is_stated(tmp_path: Path, tiers: int, shards: int) -> None:
    job, _ = load_job_document(
        {
            "training_config": {
                "model_type": "mlp", "batch_size": 1, "max_steps": 6, "eval_every": 0, "validation_batches": 1,
                "model_save_interval": 0, "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW"},
            },
            "mlp_config": {
                "input_features": WIDTH, "hidden_features": [WIDTH] * (LAYERS - 1), "output_features": WIDTH,
                "bias": False, "training_samples": 1000,
            },
            "multihost_config": {"enabled": True, "num_workers": 2},
            "device_config": {"backend": "emulator"},
        },
        folder=tmp_path,
    )  # fmt: skip
    sizes = {
        each.role: each
        for each in estimate_host_memory(
            job,
            COPY_BYTES // 4,
            largest_elements=count_largest(job.model, 0),
            workers=2,
            tiers=tiers,
            shards=shards,
        )
    }
    chip = estimate_device_memory(job, 0, dtype="float32", banks=12)
    assert chip is not None
    with Cluster(
        tmp_path / "cluster", tiers=tiers, workers=2, shards=shards, options=("--no-shared-memory",)
    ) as cluster:
        daemons = {
            "aggregator": [cluster.aggregator],
            "worker": cluster.workers,
            "shard": cluster.shards,
            "optimizer": [cluster.optimizer] if cluster.optimizer else [],
        }
        idle = {each.name: memory_bytes(each, "VmRSS") for role in daemons.values() for each in role}
        assert cluster.finish(cluster.submit(job.to_json())).state == jobs.SUCCEEDED
        for role, size in sizes.items():
            taken = [memory_bytes(each, "VmHWM") - idle[each.name] for each in daemons[role]]
            stated = size.memory_bytes + size.checkpoint_bytes + (chip.total_bytes if role == "worker" else 0)
            tolerance = TOLERANCES.get(role, 0.1)
            least = (1 - tolerance) * (stated - VARYING_BYTES.get(role, 0))
            assert least <= min(taken) and max(taken) <= (1 + tolerance) * stated, (size, taken)
