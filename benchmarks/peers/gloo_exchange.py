"""Time all_reduce of torch.distributed over gloo, between the workers alone.

`gloo_exchange.py WORKERS BYTES ROUNDS` prints a JSON list with the seconds of each round and the CPU seconds of all
workers in it. One more round warms up.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing


def rank_main(rank: int, workers: int, port: int, size_bytes: int, rounds: int) -> None:
    """Run one rank. The first rank prints."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    values = torch.full((size_bytes // 4,), 1e-3)
    found = []
    for _ in range(rounds + 1):
        dist.barrier()
        started, cpu_started = time.perf_counter(), time.process_time()
        dist.all_reduce(values)
        dist.barrier()
        seconds = time.perf_counter() - started
        used = torch.tensor(time.process_time() - cpu_started, dtype=torch.float64)
        dist.all_reduce(used)
        found.append((seconds, used.item()))
    if rank == 0:
        print(json.dumps(found[1:]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    workers, size_bytes, rounds = (int(each) for each in sys.argv[1:4])
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    multiprocessing.spawn(rank_main, (workers, port, size_bytes, rounds), nprocs=workers)
