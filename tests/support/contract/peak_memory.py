"""Peak memory of the training step in cells of the contract, on either device module.

python -m tests.support.contract.peak_memory ttnn|emulator CELL...     one JSON object: bytes by cell
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mesh.device import Mesh
from mesh.memory import capture_memory, read_chip_memory
from services.config.job import JobConfig
from tests.support.contract.cells import CELLS, Cell
from tests.support.contract.steps import device_config, make_job, open_configured_mesh
from tests.support.micro_batch import run_micro_batch
from training.step import TrainingStep


def measure_cell(cell: Cell, module: Any, dtype: str, folder: Path) -> tuple[JobConfig, int, int]:
    """Return a cell's job, the size of its vocabulary, and the peak of a chip's memory in bytes."""
    device = device_config(cell.strategy, cell.mesh)
    with open_configured_mesh(module, device, dtype) as mesh:
        job = make_job(cell.model, device, folder)
        if mesh.backend == "ttnn":
            run_passes(job, mesh)  # compiles programs, some of which keep a small tensor on the device
        return job, *run_passes(job, mesh)


def run_passes(job: JobConfig, mesh: Mesh) -> tuple[int, int]:
    """Run a micro-batch and a held-out batch; return the size of the vocabulary and the peak."""
    before_bytes = read_chip_memory(mesh).allocated_bytes
    step = TrainingStep(job, mesh)
    weights = step.initial_weights()
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])
    loaded_bytes = read_chip_memory(mesh).allocated_bytes - before_bytes
    gradient = np.empty(step.layout.elements, np.float32)
    capture = capture_memory(mesh, every_buffer=True)
    run_micro_batch(step, 0, 0, gradient)
    step.evaluate(0)
    peak_bytes = capture.segment().peak_bytes
    capture.stop()
    step.close()
    return step.layout.entries[0].shape[0], loaded_bytes + peak_bytes


def main(backend: str, cells: list[str]) -> None:
    module = import_module({"ttnn": "ttnn", "emulator": "mesh.emulator"}[backend])
    with tempfile.TemporaryDirectory() as folder:
        peaks = {name: measure_cell(CELLS[name], module, "bfloat16", Path(folder))[2] for name in cells}
    print(json.dumps(peaks))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
