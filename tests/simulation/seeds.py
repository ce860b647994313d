"""Run seeds in parallel, and report failures, speed and injected faults."""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from tests.simulation.contended import contended
from tests.simulation.scenario import Scenario
from tests.simulation.simulated_cluster import SimulatedCluster

PROGRESS_SECONDS = 10.0
"""Interval between two lines of progress."""


KINDS: dict[str, Callable[[int], Scenario]] = {"hostile": Scenario.hostile, "contended": contended}
"""Kinds of scenarios besides the usual ones, by the options that choose them."""


class Outcome(NamedTuple):
    """Result of one seed.

    Attributes:
        seed: the seed.
        steps: committed steps.
        problem: Failed check; empty after success.
        injected: number of injected faults, by kind.
    """

    seed: int
    steps: int
    problem: str
    injected: Counter[str]


def run_seed(seed: int, *, kind: str = "", tracing: bool = False) -> Outcome:
    """Run one seed of a kind of scenario to its end, or to its first failed check."""
    cluster = SimulatedCluster(seed, tracing=tracing, scenario=KINDS[kind](seed) if kind else None)
    try:
        cluster.run()
    except Exception as error:
        if tracing:
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        problem = f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
        return Outcome(seed, cluster.commits, problem, cluster.injected)
    return Outcome(seed, cluster.commits, "", cluster.injected)


def report_failure(seed: int, problem: str, command: str = "tests.simulation") -> None:
    """Print a failure and the command that replays it.

    Args:
        seed: the seed.
        problem: the failed check.
        command: module that runs the seed, with its options.
    """
    print(f"seed {seed}: {problem}")
    print(f"    replay: .venv/bin/python -m {command} --seed {seed} --trace", flush=True)


def run_seeds(first: int, count: int, processes: int, kind: str = "") -> int:
    """Run seeds of a kind of scenario in parallel, and return how many failed."""
    command = f"tests.simulation --{kind}" if kind else "tests.simulation"
    return run_all(range(first, first + count), processes, partial(run_seed, kind=kind), command)


def run_all(seeds: range, processes: int, run: Callable[[int], Outcome], command: str) -> int:
    """Run seeds in parallel, print failures, progress and a summary, and return how many failed.

    Args:
        seeds: the seeds.
        processes: number of processes.
        run: runs one of them.
        command: module that replays one of them, with its options.
    """
    started = printed = time.perf_counter()
    failed = steps = 0
    count = len(seeds)
    injected: Counter[str] = Counter()
    # Spawned, not forked: a lock that another thread of the caller holds would stay locked in a forked child.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for done, each in enumerate(pool.map(run, seeds, chunksize=5), 1):
            steps += each.steps
            injected += each.injected
            if each.problem:
                failed += 1
                report_failure(each.seed, each.problem, command)
            now = time.perf_counter()
            if now - printed >= PROGRESS_SECONDS:
                printed = now
                left_minutes = (now - started) / done * (count - done) / 60
                print(
                    f"{done} of {count} seeds, {failed} failed, {done / (now - started):.1f} seeds/s, "
                    f"{left_minutes:.0f} min left",
                    file=sys.stderr,
                    flush=True,
                )
    seconds = time.perf_counter() - started
    print(
        f"{count} seeds, {steps} steps, {failed} failed, {seconds:.1f} s on {processes} processes: "
        f"{count / seconds:.1f} seeds/s, {steps / seconds:.0f} steps/s"
    )
    print(f"injected, {sum(injected.values()) / count:.1f} a seed:")
    for what, often in injected.most_common():
        print(f"    {often:9}  {what}")
    return failed
