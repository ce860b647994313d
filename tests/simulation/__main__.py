"""Run seeds of the simulation, or replay one.

python -m tests.simulation --seeds 500                 seeds 0 to 499, on all cores
python -m tests.simulation --seed 123 --trace          one seed, with all inputs and effects
python -m tests.simulation --hostile --seeds 500       short runs in which most of what can go wrong does
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.scenario import Scenario
from tests.simulation.world import World


def run_seed(seed: int, *, hostile: bool = False, tracing: bool = False) -> tuple[int, int, str]:
    """The seed, steps committed, and what went wrong (empty: nothing)."""
    world = World(seed, tracing=tracing, scenario=Scenario.hostile(seed) if hostile else None)
    try:
        world.run()
    except Exception as error:
        if tracing:
            traceback.print_exc()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return seed, world.commits, f"{type(error).__name__}: {error} ({where.name}, line {where.lineno})"
    return seed, world.commits, ""


def report_failure(seed: int, problem: str, hostile: bool = False) -> None:
    """Print what went wrong, and the command that replays it."""
    print(f"seed {seed}: {problem}")
    options = "--hostile " * hostile + f"--seed {seed} --trace"
    print(f"    replay: .venv/bin/python -m tests.simulation {options}", flush=True)


def run_seeds(first: int, count: int, processes: int, hostile: bool) -> int:
    """Run seeds side by side; print those that fail; return how many did."""
    started = time.perf_counter()
    failed = steps = 0
    with ProcessPoolExecutor(processes) as pool:
        run = partial(run_seed, hostile=hostile)
        for seed, committed, problem in pool.map(run, range(first, first + count), chunksize=5):
            steps += committed
            if problem:
                failed += 1
                report_failure(seed, problem, hostile)
    seconds = time.perf_counter() - started
    print(f"{count} seeds, {steps} steps, {failed} failed, {seconds:.1f} s")
    return failed


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="just this one")
    parser.add_argument("--hostile", action="store_true", help="short runs with many faults")
    parser.add_argument("--trace", action="store_true", help="print inputs and effects (with --seed)")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.seed is None:
        failed = run_seeds(options.first, options.seeds, options.processes, options.hostile)
        return 1 if failed else 0
    seed, steps, problem = run_seed(options.seed, hostile=options.hostile, tracing=options.trace)
    print(f"seed {seed}: {steps} steps; {problem or 'all that must hold did'}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
