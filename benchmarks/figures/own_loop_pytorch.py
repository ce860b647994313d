"""own_loop_pytorch: time of a step of nanoGPT in PyTorch on 2 external workers, over DistributedDataParallel.

The model is nanoGPT's for characters, of 10.7 M parameters, with its 64 sequences of 256 tokens a step in 8
micro-batches. Two loops join the workers of a cluster in 2 tiers, and two ranks of DDP use gloo, with one thread each.
All run at once on the same cores, but only one side computes: steps alternate. A step ends when both loops, or both
ranks, can begin the next one.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness.job_settings import BUILD, ROOT
from benchmarks.harness.pairs import PAIRS, interval
from benchmarks.harness.peer import SCRIPTS, peer_python
from benchmarks.harness.report import report
from benchmarks.harness.watched_cluster import WatchedCluster
from services.errors import Failed

NAME = "own_loop_pytorch"
BOUND = 1.1
LIMIT_SECONDS = 120.0
WARM_UP_STEPS = 2
PROCESSES = 2
SETTING: dict[str, Any] = {
    "model": {
        "vocabulary": 65, "tokens": 256, "width": 384, "heads": 6, "blocks": 6, "bias": False, "tied": True
    },
    "sequences": 8,
    "micro_batches": 8,
}  # fmt: skip
CONFIG = f"""
training_config:
  project_name: own-loop
  model_type: external
  batch_size: {SETTING["sequences"]}
  gradient_accumulation_steps: {SETTING["micro_batches"]}
  max_steps: 100000
  eval_every: 0
  validation_batches: 0
  model_save_interval: 0
  use_clip_grad_norm: true
  clip_grad_norm_max_norm: 1.0
  optimizer: {{type: AdamW, lr: 1.0e-3, beta1: 0.9, beta2: 0.99, weight_decay: 0.1, weight_decay_on: matrices}}
transformer_config:
  max_sequence_length: {SETTING["model"]["tokens"]}
"""


class Side:
    """Two processes that make steps together.

    Args:
        mode: mode of the script.
        settings: what each process is told.
    """

    def __init__(self, mode: str, settings: Sequence[dict[str, Any]]) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'sdk'}:{ROOT}"}
        self._mode = mode
        self._processes = [
            subprocess.Popen(
                [peer_python(), str(SCRIPTS / "own_loop.py"), mode, json.dumps({**SETTING, **setting})],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for setting in settings
        ]

    async def wait_ready(self) -> None:
        """Wait until both can begin a step."""
        lines = await asyncio.wait_for(
            asyncio.gather(*(asyncio.to_thread(self._read, each) for each in self._processes)), LIMIT_SECONDS
        )
        if lines != ["ready\n"] * len(lines):
            raise Failed(f"{NAME}: {self._mode}: a process has ended")

    async def step(self) -> float:
        """Make a step, and return its seconds."""
        began_seconds = time.perf_counter()
        for each in self._processes:
            assert each.stdin is not None
            each.stdin.write("step\n")
            each.stdin.flush()
        await self.wait_ready()
        return time.perf_counter() - began_seconds

    def _read(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline()

    def kill(self) -> None:
        """End both."""
        for each in self._processes:
            each.kill()
            each.communicate()


def run() -> bool:
    """Alternate steps of both sides, and report the ratio with its 95 % interval."""
    ours, theirs = asyncio.run(_measure())
    middle, low, high = interval([own / other for own, other in zip(ours, theirs, strict=True)])
    return report(
        NAME,
        middle,
        BOUND,
        f"95 % interval {low:.3f} - {high:.3f}, {PAIRS} pairs of steps on {os.cpu_count()} cores",
        f"seconds of a step: external workers {statistics.fmean(ours):.2f}, DDP {statistics.fmean(theirs):.2f}",
    )


async def _measure() -> tuple[list[float], list[float]]:
    folder = BUILD / NAME
    shutil.rmtree(folder, ignore_errors=True)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(WatchedCluster(folder / "cluster"))
        sockets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tiermesh-bench-")))
        (folder / "job.yaml").write_text(CONFIG)
        job = await cluster.submit(str(folder / "job.yaml"))
        joined = [{"socket": str(sockets / str(number)), "job": job} for number in range(PROCESSES)]
        for each in joined:
            await cluster.start_external(Path(each["socket"]))
        sides = (
            Side("join", joined),
            Side(
                "ddp",
                [
                    {"rank": rank, "ranks": PROCESSES, "rendezvous": str(folder / "rendezvous")}
                    for rank in range(PROCESSES)
                ],
            ),
        )
        for side in sides:
            stack.callback(side.kill)
        for side in sides:
            await side.wait_ready()
        seconds: tuple[list[float], list[float]] = [], []
        for _ in range(WARM_UP_STEPS + PAIRS):
            for side, taken in zip(sides, seconds, strict=True):
                taken.append(await side.step())
        return seconds[0][WARM_UP_STEPS:], seconds[1][WARM_UP_STEPS:]
