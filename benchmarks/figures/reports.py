"""reports: CPU time that a step takes more for its history, its page, its metrics and its notifications together.

One set of daemons trains the GPT with 10.7 M parameters: an aggregator with the optimizer, a worker, and the HTTP API.
Blocks of steps with and without reports alternate (`peers/silent_aggregator.py`). With them, the aggregator writes the
job's history, counts its metrics, which are scraped every second, and looks at each step for what the job's target is
to be told; a webhook on this machine takes the messages, and a browser shows the job's page. What counts is the CPU
time of all daemons.

The job's log stays on in both, as does what a worker counts: its metrics are a few additions a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import statistics
import urllib.request
from collections.abc import AsyncGenerator

from benchmarks.figures.compute_process import CONFIG, OVERRIDES
from benchmarks.harness.client_process import ClientProcess
from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.pairs import PAIRS, interval
from benchmarks.harness.report import Skipped, report
from benchmarks.harness.watched_cluster import LIMIT_SECONDS, WatchedCluster, next_event
from protos import jobs_pb2
from tests.support.browser import NoBrowser, find_browser

NAME = "reports"
BOUND = 1.02
AGGREGATOR = ROOT / "benchmarks" / "peers" / "silent_aggregator.py"
PAGES = ROOT / "benchmarks" / "peers" / "open_pages.py"
WARM_UP_STEPS, STEPS = 3, 30
SCRAPE_SECONDS = 1.0


def run() -> bool:
    """Measure pairs of blocks, and report the ratio with its 95 % interval."""
    try:
        find_browser()
    except NoBrowser as reason:
        raise Skipped(str(reason)) from None
    pairs = asyncio.run(_measure())
    middle, low, high = interval([on / off for off, on in pairs])
    without, with_reports = (statistics.fmean(side) for side in zip(*pairs, strict=True))
    return report(
        NAME,
        middle,
        BOUND,
        f"95 % interval {low:.4f} - {high:.4f}, {PAIRS} pairs of blocks of {STEPS} steps in one set of daemons",
        f"CPU seconds of a step: {without:.4f} without reports, {with_reports:.4f} with them",
    )


async def _measure() -> list[tuple[float, float]]:
    """Return the CPU seconds of a step in the blocks of each pair: without reports, and with them."""
    webhook = await asyncio.start_server(_take_message, "127.0.0.1", 0)
    BUILD.mkdir(parents=True, exist_ok=True)
    targets = BUILD / f"{NAME}-targets"  # the cluster empties its folder
    targets.touch(mode=0o600)
    targets.write_text(f"bench json http://127.0.0.1:{webhook.sockets[0].getsockname()[1]}/\n")
    switch = BUILD / f"{NAME}-switch"
    switch.unlink(missing_ok=True)
    os.mkfifo(switch)
    cluster = WatchedCluster(
        BUILD / NAME,
        aggregator_program=(str(AGGREGATOR),),
        aggregator_options=("--notify-targets", str(targets)),
        environment={"TIERMESH_BENCH_SWITCH": str(switch)},
    )
    async with webhook, cluster:
        words = [word for each in (*OVERRIDES, "training_config.notify=bench") for word in ("--set", each)]
        job = await cluster.submit(str(ROOT / CONFIG), *words)
        pages = await ClientProcess.start(PAGES, *await cluster.serve_http())
        try:
            async with contextlib.aclosing(cluster.client.watch(job)) as events:
                await _steps(events, WARM_UP_STEPS)
                pairs = []
                for number in range(PAIRS):
                    blocks = {}
                    for reports in (True, False) if number % 2 else (False, True):
                        switch.write_text("on\n" if reports else "off\n")
                        await pages.order(*(("follow", job, "1") if reports else ("leave",)))
                        blocks[reports] = await _block(cluster, events, reports=reports)
                    pairs.append((blocks[False], blocks[True]))
                return pairs
        finally:
            pages.stop()


async def _block(
    cluster: WatchedCluster, events: AsyncGenerator[jobs_pb2.JobEvent, None], *, reports: bool
) -> float:
    await _steps(events, 1)
    port = cluster.find("aggregator").metrics_port
    scraping = asyncio.create_task(_scrape(port)) if reports else None
    before = cluster.cpu_seconds()
    await _steps(events, STEPS)
    seconds = (cluster.cpu_seconds() - before) / STEPS
    if scraping is not None:
        scraping.cancel()
    return seconds


async def _steps(events: AsyncGenerator[jobs_pb2.JobEvent, None], count: int) -> None:
    for _ in range(count):
        await next_event(events, lambda event: event.kind == "step")


async def _scrape(port: int) -> None:
    """Read a daemon's metrics again and again, as Prometheus does."""
    while True:
        await asyncio.to_thread(_read_metrics, port)
        await asyncio.sleep(SCRAPE_SECONDS)


def _read_metrics(port: int) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_SECONDS) as answer:
        answer.read()


async def _take_message(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a webhook's request: it was taken."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        await reader.readexactly(int(length[1]) if length else 0)
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
    writer.close()
