"""own_loop_clients: CPU time that a step takes more while 50 clients follow its job by HTTP and one reads a history.

One cluster trains the GPT with 10.7 M parameters: an aggregator with the optimizer, a worker, and `tiermesh web`.
Blocks of steps with and without clients alternate. With them, 50 clients take the events of all steps, and another
one reads all columns of 1,000,000 steps of an ended job once. What counts is the CPU time of aggregator and worker,
since they make the steps. That of `tiermesh web` stands beside it; it may be on another host.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from benchmarks.figures.compute_process import CONFIG, OVERRIDES
from benchmarks.harness.client_process import Block, ClientProcess, cpu_by_daemon, describe_blocks, wait_steps
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.long_history import HISTORY_STEPS, make_history
from benchmarks.harness.pairs import PAIRS, interval
from benchmarks.harness.report import report
from benchmarks.harness.watched_cluster import WatchedCluster
from protos import jobs_pb2
from services.errors import Failed

NAME = "own_loop_clients"
BOUND = 1.03
CLIENTS = ROOT / "benchmarks" / "peers" / "http_clients.py"
WARM_UP_STEPS, STEPS = 3, 30


def run() -> bool:
    """Measure pairs of blocks, and report the ratio with its 95 % interval."""
    pairs = asyncio.run(_measure())
    middle, low, high = interval([on.training / off.training for off, on in pairs])
    sides = {"without": [off for off, _ in pairs], "with": [on for _, on in pairs]}
    return report(
        NAME,
        middle,
        BOUND,
        f"95 % interval {low:.4f} - {high:.4f}, {PAIRS} pairs of blocks of {STEPS} steps in one set of daemons",
        *(
            f"CPU seconds of a step {name} clients: {describe_blocks(blocks)}"
            for name, blocks in sides.items()
        ),
    )


async def _measure() -> list[tuple[Block, Block]]:
    """Return the pairs of blocks: without clients, and with them."""
    async with WatchedCluster(BUILD / NAME) as cluster:
        url, token = await cluster.serve_http()
        ended = await make_history(cluster)
        words = [word for each in OVERRIDES for word in ("--set", each)]
        job = await cluster.submit(str(ROOT / CONFIG), *words)
        clients = await ClientProcess.start(CLIENTS, url, token)
        try:
            async with aclosing(cluster.client.watch(job)) as events:
                await wait_steps(events, WARM_UP_STEPS)
                pairs = []
                for number in range(PAIRS):
                    blocks = {}
                    for with_clients in (True, False) if number % 2 else (False, True):
                        blocks[with_clients] = await _block(
                            cluster, events, clients, job, ended, with_clients
                        )
                    pairs.append((blocks[False], blocks[True]))
                return pairs
        finally:
            clients.stop()


async def _block(
    cluster: WatchedCluster,
    events: AsyncGenerator[jobs_pb2.JobEvent, None],
    clients: ClientProcess,
    job: str,
    ended: str,
    with_clients: bool,
) -> Block:
    if with_clients:
        await clients.order("follow", job)
    await wait_steps(events, 1)
    before = cpu_by_daemon(cluster)
    reading = asyncio.create_task(clients.order("read", ended)) if with_clients else None
    await wait_steps(events, STEPS)
    after = cpu_by_daemon(cluster)
    if reading is not None:
        if not reading.done():
            raise Failed(f"{NAME}: {STEPS} steps ended before {HISTORY_STEPS} steps of metrics were read")
        if int(reading.result()) != HISTORY_STEPS:
            raise Failed(f"{NAME}: {reading.result()} steps of metrics were read, expected {HISTORY_STEPS}")
        await clients.order("leave")
    return Block.between(before, after, STEPS)
