"""`tiermesh validate`: check a job's config without a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.jobs import read_job
from cli.output import Output


def run(path: Path, overrides: Sequence[str], output: Output) -> None:
    """Check a job's config, its data and its mesh, and print what the job would be.

    Raises:
        Refused: something is wrong; the message names the first such setting.
    """
    from mesh.backend import check_mesh_shape

    config = read_job(path, overrides, output)
    device = config.device
    descriptor = check_mesh_shape(device.mesh_shape, device.backend)
    fields: dict[str, Any] = {
        "name": config.name,
        "model": config.model.model_type,
        "starts_from": config.pretrained.path if config.pretrained else None,
        "steps": config.steps,
        "micro_batches": config.micro_batches,
        "batch_size": config.batch_size,
        "sequences_per_step": config.sequences_per_step,
        "mesh_shape": list(device.mesh_shape),
        "mesh_graph_descriptor": str(descriptor) if descriptor else None,
        "data_parallel": device.data_parallel_size,
        "tensor_parallel": device.tensor_parallel_size,
        "optimizer": config.optimizer.type,
        "schedule": config.schedule.type,
        "data": ", ".join(file.path for file in config.data.files) if config.data else None,
    }
    for name, value in fields.items():
        output.say(f"{name:<22} {value}")
    output.say("the config is valid")
    output.result({"valid": True, **fields})
