"""page_paint, page_bytes, page_draw, page_clients: what the page of `tiermesh web` costs its reader, and the cluster.

A real browser on this machine reads it, without a cache. `page_paint` and `page_draw` are seconds on the wall from the
request of the index: to the first paint of the cluster, and to the curve of a job of 1,000,000 steps. For
`page_clients`, blocks of steps alternate in one cluster: without a page, and with 50 tabs that show the job. What
counts is the CPU time of aggregator and worker, as in `own_loop_clients`.
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
from benchmarks.harness.report import Skipped, median, report
from benchmarks.harness.watched_cluster import WatchedCluster
from protos import jobs_pb2
from tests.support.browser import NoBrowser, find_browser

NAME = "page"
PAINT_BOUND_SECONDS = 1.0
BYTES_BOUND = 300_000
DRAW_BOUND_SECONDS = 1.0
CLIENTS_BOUND = 1.03
PAGES = ROOT / "benchmarks" / "peers" / "open_pages.py"
REPEATS = 11
TABS = 50
WARM_UP_STEPS, STEPS = 3, 30


def run() -> bool:
    """Measure all four, in one cluster."""
    try:
        find_browser()
    except NoBrowser as reason:
        raise Skipped(str(reason)) from None
    return asyncio.run(_measure())


async def _measure() -> bool:
    async with WatchedCluster(BUILD / NAME) as cluster:
        url, token = await cluster.serve_http()
        ended = await make_history(cluster)
        pages = await ClientProcess.start(PAGES, url, token)
        try:
            visits = [tuple(map(float, (await pages.order("visit")).split())) for _ in range(REPEATS)]
            draws = [float(await pages.order("draw", ended)) for _ in range(REPEATS)]
            words = [word for each in OVERRIDES for word in ("--set", each)]
            job = await cluster.submit(str(ROOT / CONFIG), *words)
            pairs = await _pairs(cluster, pages, job)
        finally:
            pages.stop()
    paints, sizes = zip(*visits, strict=True)
    middle, low, high = interval([on.training / off.training for off, on in pairs])
    sides = {"without": [off for off, _ in pairs], "with": [on for _, on in pairs]}
    kept = [
        _report_seconds(f"{NAME}_paint", paints, PAINT_BOUND_SECONDS),
        report(
            f"{NAME}_bytes",
            max(sizes),
            BYTES_BOUND,
            "of the index, all files and the first answers",
            decimals=0,
        ),
        _report_seconds(f"{NAME}_draw", draws, DRAW_BOUND_SECONDS, f"a job of {HISTORY_STEPS:,} steps"),
        report(
            f"{NAME}_clients",
            middle,
            CLIENTS_BOUND,
            f"95 % interval {low:.4f} - {high:.4f}, {PAIRS} pairs of blocks of {STEPS} steps in one set of daemons",
            *(f"CPU seconds of a step {name} pages: {describe_blocks(each)}" for name, each in sides.items()),
        ),
    ]
    return all(kept)


def _report_seconds(name: str, seconds: list[float] | tuple[float, ...], bound: float, *details: str) -> bool:
    measured = f"{len(seconds)} times without a cache, {min(seconds):.3f} - {max(seconds):.3f}"
    return report(name, median(seconds), bound, *details, measured)


async def _pairs(cluster: WatchedCluster, pages: ClientProcess, job: str) -> list[tuple[Block, Block]]:
    """Return the pairs of blocks: without pages, and with them."""
    async with aclosing(cluster.client.watch(job)) as events:
        await wait_steps(events, WARM_UP_STEPS)
        pairs = []
        for number in range(PAIRS):
            blocks = {}
            for with_pages in (True, False) if number % 2 else (False, True):
                blocks[with_pages] = await _block(cluster, events, pages, job if with_pages else "")
            pairs.append((blocks[False], blocks[True]))
        return pairs


async def _block(
    cluster: WatchedCluster, events: AsyncGenerator[jobs_pb2.JobEvent, None], pages: ClientProcess, job: str
) -> Block:
    if job:
        await pages.order("follow", job, str(TABS))
    await wait_steps(events, 1)
    before = cpu_by_daemon(cluster)
    await wait_steps(events, STEPS)
    after = cpu_by_daemon(cluster)
    if job:
        await pages.order("leave")
    return Block.between(before, after, STEPS)
