"""Files and bytes of a checkpoint."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from services.checkpoints.format import (
    CONSTANTS_FILE,
)
from services.checkpoints.safetensors_file import pieces
from services.checkpoints.write import (
    write_checkpoint,
)
from services.config.load import load_job
from tests.support.outward.common import (
    JOBS,
    LAYOUT,
    digest,
    draw_numbers,
)


def describe_checkpoint() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        folder = make_checkpoint(Path(root), "job-1")
        state = json.loads((folder / "state.json").read_bytes())
        return {
            "folder": folder.name,
            "files": {each.name: digest(each.read_bytes()) for each in sorted(folder.iterdir())},
            "state.json": state,
            "layout hash": LAYOUT.hash,
        }


def make_checkpoint(root: Path, job: str) -> Path:
    first, second = (draw_numbers(LAYOUT.elements, seed) for seed in (3, 4))
    constants = b"".join(pieces({"model.position": draw_numbers(12, 5).reshape(3, 4)}))
    return write_checkpoint(
        root,
        job=job,
        generation=2,
        step=12,
        config_json=load_job(JOBS / "mlp.yaml", [])[0].to_json(),
        layout=LAYOUT,
        weights=draw_numbers(LAYOUT.elements, 2),
        optimizer_state={"exp_avg": first, "exp_avg_sq": second, "applied": np.array([12])},
        files={"config.json": b'{"model_type": "mlp"}', CONSTANTS_FILE: constants},
    ).path
