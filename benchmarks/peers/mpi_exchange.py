"""Time the scheme of tt-train's MPI example: rank 0 receives each tensor from each worker, averages it, sends it back.

`mpirun -n WORKERS+1 python mpi_exchange.py BYTES TENSORS ROUNDS` prints, on rank 0, a JSON list with the seconds of
each round and the CPU seconds of all ranks in it. One more round warms up.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from mpi4py import MPI


def main(size_bytes: int, tensors: int, rounds: int) -> None:
    """Run one rank."""
    world = MPI.COMM_WORLD
    size = size_bytes // 4 // tensors
    values = np.full((tensors, size), 1e-3, np.float32)
    received = np.ones(size, np.float32)
    found = []
    for _ in range(rounds + 1):
        world.Barrier()
        started, cpu_started = time.perf_counter(), time.process_time()
        if world.rank == 0:
            for tensor in values:
                tensor.fill(0)
                for worker in range(1, world.size):
                    world.Recv(received, worker)
                    np.add(tensor, received, out=tensor)
                np.multiply(tensor, np.float32(1 / (world.size - 1)), out=tensor)
            for tensor in values:
                for worker in range(1, world.size):
                    world.Send(tensor, worker)
        else:
            for tensor in values:
                world.Send(tensor, 0)
            for tensor in values:
                world.Recv(tensor, 0)
        world.Barrier()
        seconds, used = time.perf_counter() - started, time.process_time() - cpu_started
        found.append((seconds, world.allreduce(used)))
    if world.rank == 0:
        print(json.dumps(found[1:]))


if __name__ == "__main__":
    main(*(int(each) for each in sys.argv[1:4]))
