"""Script for a process on a mocked board: run a lease of a pipeline on submeshes through the real ttnn.

Arguments: a folder for files, and rows and columns of the mesh of each of two stages. It prints what was computed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from mesh.device import is_mesh_of_host, open_mesh
from services.config.pipeline import PipelineConfig
from services.pipeline.exchange import Compute, FinishedPass
from tests.support.contract.steps import device_config, make_job
from training.pipeline.submeshes import divide_mesh, find_pipeline_mesh_shape
from training.step import TrainingStep

PIPELINE = PipelineConfig(blocks_per_stage=(2, 2), ranges_per_stage=2, schedule="interleaved_1f1b")


def main() -> None:
    """Print one JSON object."""
    folder, rows, columns = sys.argv[1:]
    config = make_job("gpt2", device_config("ddp", (int(rows), int(columns))), Path(folder))
    config = config.model_copy(
        update={"pipeline": PIPELINE, "model": config.model.model_copy(update={"num_blocks": 4})}
    )
    shape = find_pipeline_mesh_shape(config)
    assert shape is not None
    is_known = is_mesh_of_host(shape, "ttnn")
    ranges: list[int] = []
    with open_mesh(shape, backend="ttnn") as mesh:
        step = TrainingStep(config, divide_mesh(config, mesh))
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])

        def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
            del index
            own = step.ranges[range_index]
            ranges.append(range_index)
            return compute(np.empty(own.stop - own.start, np.float32), lambda offset: None)

        losses = step.micro_batches(0, 0, 2, add_leaf)
        shapes = step.fingerprint()["mesh_shape"]
        step.close()
    print(json.dumps({"losses": len(losses), "ranges": ranges, "shape": shapes, "is known": is_known}))


main()
