"""The configuration folders that ship are launched as their files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "cluster_configurations" / "5loudboxes"


@pytest.mark.parametrize(("num_workers", "tiers"), [(3, 3), (4, 2)])
def test_five_loudboxes(
    num_workers: int, tiers: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "training_config: {model_type: linear_regression, max_steps: 1, batch_size: 8}\n"
        "linear_regression_config: {num_features: 4, num_targets: 2, training_samples: 200}\n"
        "device_config: {mesh_shape: [1, 8], enable_ddp: true}\n"
        f"multihost_config: {{enabled: true, num_workers: {num_workers}}}\n"
    )
    code = main(["launch", str(FOLDER), "--config", str(job), "--dry-run", "--json"])
    result = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert code == 0, result
    assert result["tiers"] == tiers
    hosts = {rank["rank"]: rank["host"] for rank in result["ranks"]}
    assert hosts == {rank: f"loudbox-0{rank + 1}" for rank in range(5)}
    workers = [rank for rank in result["ranks"] if rank["role"] == "worker"]
    assert [rank["mesh_id"] for rank in workers] == list(range(num_workers))
