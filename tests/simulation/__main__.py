"""Run seeds of the simulation, or replay one.

python -m tests.simulation --seeds 500                 seeds 0 to 499, on all cores
python -m tests.simulation --seed 123 --trace          one seed, with all inputs and effects
python -m tests.simulation --hostile --seeds 500       short runs with most kinds of faults
"""

from __future__ import annotations

import argparse
import os
import sys

from tests.simulation.seeds import run_seed, run_seeds


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--hostile", action="store_true", help="short runs with many faults")
    parser.add_argument("--trace", action="store_true", help="print inputs and effects (with --seed)")
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="processes in parallel (default: all cores)",
    )
    options = parser.parse_args()
    if options.seed is None:
        failed = run_seeds(options.first, options.seeds, options.processes, options.hostile)
        return 1 if failed else 0
    outcome = run_seed(options.seed, hostile=options.hostile, tracing=options.trace)
    print(f"seed {outcome.seed}: {outcome.steps} steps; {outcome.problem or 'all checks passed'}")
    return 1 if outcome.problem else 0


if __name__ == "__main__":
    sys.exit(main())
