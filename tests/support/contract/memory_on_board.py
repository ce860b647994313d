"""Run in a process of its own on a mocked board: what a few ops take of a chip's memory, told by each capture."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np

from mesh.device import Mesh, open_mesh
from mesh.memory import capture_memory, read_chip_memory


def _use(mesh: Mesh) -> None:
    """Take memory for a while: operands, a product, a sum over the devices."""
    tt = mesh.tt
    array = np.ones((1, 1, 256, 384), np.float32)
    x = tt.Tensor(array, tt.bfloat16, device=mesh.handle, layout=tt.TILE_LAYOUT)
    y = tt.matmul(x, x, transpose_b=True)
    del x
    z = tt.add(y, y)
    del y, z


def main() -> None:
    """One JSON object: the segments that each kind of capture tells."""
    backend = sys.argv[1]
    told = {}
    with open_mesh((1, 8), backend=backend, dtype="bfloat16") as mesh:
        for every_buffer in (False, True):
            capture = capture_memory(mesh, every_buffer=every_buffer)
            kept = mesh.tt.ones(
                [768, 32], dtype=mesh.tt.bfloat16, layout=mesh.tt.TILE_LAYOUT, device=mesh.handle
            )
            first = capture.segment()
            _use(mesh)
            second = capture.segment()
            capture.stop()
            told[str(every_buffer)] = [dataclasses.asdict(first), dataclasses.asdict(second)]
            del kept
        told["left"] = read_chip_memory(mesh).allocated_bytes
    print(json.dumps(told))


main()
