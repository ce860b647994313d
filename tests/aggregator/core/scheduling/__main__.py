"""Run seeds of the scheduler's simulation, or replay one.

python -m tests.aggregator.core.scheduling --seeds 10000           seeds 0 to 9999, on all cores
python -m tests.aggregator.core.scheduling --seed 123 --trace      one seed, with all decisions
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.aggregator.core.scheduling.simulated_jobs import COMMAND, run_seed
from tests.simulation.seeds import run_all


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog=f"python -m {COMMAND}", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--trace", action="store_true", help="print what happens (with --seed)")
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="processes in parallel (default: all cores)",
    )
    options = parser.parse_args()
    if options.seed is None:
        seeds = range(options.first, options.first + options.seeds)
        return 1 if run_all(seeds, options.processes, run_seed, COMMAND) else 0
    outcome = run_seed(options.seed, tracing=options.trace)
    print(f"seed {outcome.seed}: {outcome.steps} decisions; {outcome.problem or 'all checks passed'}")
    return 1 if outcome.problem else 0


if __name__ == "__main__":
    sys.exit(main())
