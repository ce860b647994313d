"""pipeline_transfers: share of the transfers between stages that computing hides, on links of 1 Gbit/s.

Each stage is a process on a host of its own (harness/hosts.py). It runs the passes of 1F1B, which are pauses, and
exchanges activations of 4 MiB by the worker's own code. For each micro-batch it computes twice as long as its host's
link is busy in one direction: with an activation or a gradient, or with both at a stage between two others.

What a step takes longer than the same passes, each as long as it was, would take if arrays arrived at once, is exposed.
The rest of the transfers is hidden.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.harness.hosts import GIGABIT, Host, Hosts
from benchmarks.harness.link_meter import raw_share
from benchmarks.harness.report import median, milliseconds, report
from benchmarks.peers.stage_worker import StageWork
from services.errors import Failed
from services.pipeline.schedule import Pass, Schedule

LEAST_SHARE = 0.90
STAGES = (2, 4)
MICRO_BATCHES = 64
ELEMENTS = 1024 * 1024
ROUNDS = 5
COMPUTE_PER_TRANSFER = 2.0
LIMIT_SECONDS = 300.0


def run() -> bool:
    """Measure pipelines of 2 and of 4 stages."""
    shares, details = [], []
    for stages in STAGES:
        names = [f"stage-{stage}" for stage in range(stages)]
        with Hosts(names, GIGABIT) as network:
            hosts = [network.by_name[name] for name in names]
            raw = raw_share([(hosts[0], hosts[1])], GIGABIT)
            arrays = 1 if stages == 2 else 2  # that a host sends for a micro-batch
            transfer_seconds = arrays * 8 * 4 * ELEMENTS / (raw * GIGABIT)
            steps = _measure(hosts, transfer_seconds)
        exposed = [step.seconds - step.without_transfers for step in steps]
        carried = 2 * MICRO_BATCHES * transfer_seconds
        shares.append(1 - median(exposed) / carried)
        details += [
            f"{stages} stages, {MICRO_BATCHES} micro-batches: {shares[-1]:.1%} of {1e3 * carried:.0f} ms hidden; "
            f"{1e3 * transfer_seconds:.1f} ms for a micro-batch each way; plain sockets fill {raw:.1%} of a link",
            f"    a step: {milliseconds([step.seconds for step in steps])}; exposed: {milliseconds(exposed)}",
        ]
    return report("pipeline_transfers_hidden", min(shares), LEAST_SHARE, *details, at_least=True)


class Step(NamedTuple):
    """Seconds of a step, and those that the same passes would take without transfers."""

    seconds: float
    without_transfers: float


def _measure(hosts: Sequence[Host], transfer_seconds: float) -> list[Step]:
    """Return the times of each lease, without a first one that opens the links."""
    compute = COMPUTE_PER_TRANSFER * transfer_seconds
    with ExitStack() as stack:
        processes = []
        for stage, host in enumerate(hosts):
            command = [sys.executable, "-m", "benchmarks.peers.stage_worker", f"stage-{stage}"]
            process = stack.enter_context(
                subprocess.Popen(
                    host.command(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        ports = [int(_read_line(process)) for process in processes]
        addresses = [f"{host.address}:{port}" for host, port in zip(hosts, ports, strict=True)]
        for stage, process in enumerate(processes):
            work = StageWork(
                stage=stage,
                addresses=addresses,
                micro_batches=MICRO_BATCHES,
                leases=1 + ROUNDS,
                elements=ELEMENTS,
                forward_seconds=compute / 3,
                backward_seconds=2 * compute / 3,
            )
            assert process.stdin is not None
            process.stdin.write(work.to_json())
            process.stdin.flush()
        spans = [[json.loads(_read_line(process)) for process in processes] for _ in range(1 + ROUNDS)]
    return [_time(work.schedule, each) for each in spans[1:]]


def _time(schedule: Schedule, spans: Sequence[Sequence[tuple[float, float]]]) -> Step:
    """Return the times of a lease, from the start and end of each stage's passes."""
    left = [iter(each) for each in spans]
    free = [0.0] * schedule.stages
    fed: dict[Pass, float] = {}
    for one in schedule.merged_passes():
        stage = one.range_index
        start, stop = next(left[stage])
        free[stage] = max(free[stage], fed.pop(one, 0.0)) + stop - start
        successor = schedule.successor(one)
        if successor is not None:
            fed[successor] = free[stage]
    seconds = max(each[-1][1] for each in spans) - min(each[0][0] for each in spans)
    return Step(seconds, max(free))


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise Failed(f"a stage ended with exit code {process.wait(LIMIT_SECONDS)}")
    return line
