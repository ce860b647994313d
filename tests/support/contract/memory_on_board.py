"""Script for a process on a mocked board: memory that a few ops allocate, from each kind of capture."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np

from mesh.device import Mesh, open_mesh
from mesh.memory import capture_memory, read_chip_memory


def _allocate(mesh: Mesh) -> None:
    """Allocate operands, a product and a sum, and free them."""
    tt = mesh.tt
    array = np.ones((1, 1, 256, 384), np.float32)
    x = tt.Tensor(array, tt.bfloat16, device=mesh.handle, layout=tt.TILE_LAYOUT)
    y = tt.matmul(x, x, transpose_b=True)
    del x
    z = tt.add(y, y)
    del y, z


def main() -> None:
    """Print one JSON object with the segments of each kind of capture."""
    backend = sys.argv[1]
    segments: dict[str, Any] = {}
    with open_mesh((1, 8), backend=backend, dtype="bfloat16") as mesh:
        for every_buffer in (False, True):
            capture = capture_memory(mesh, every_buffer=every_buffer)
            kept = mesh.tt.ones(
                [768, 32], dtype=mesh.tt.bfloat16, layout=mesh.tt.TILE_LAYOUT, device=mesh.handle
            )
            first = capture.segment()
            _allocate(mesh)
            second = capture.segment()
            capture.stop()
            segments[str(every_buffer)] = [dataclasses.asdict(first), dataclasses.asdict(second)]
            del kept
        segments["left"] = read_chip_memory(mesh).allocated_bytes
    print(json.dumps(segments))


main()
