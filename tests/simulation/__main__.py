"""Run seeds of the simulation, or replay one.

python -m tests.simulation --seeds 500                 seeds 0 to 499, on all cores
python -m tests.simulation --seed 123 --trace          one seed, with all inputs and effects
python -m tests.simulation --hostile --seeds 500       short runs with most kinds of faults
python -m tests.simulation --contended --seeds 500     short runs of several jobs that want the same workers
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
    for kind, text in (("hostile", "many faults"), ("contended", "several jobs that want the same workers")):
        help_text = f"short runs with {text}"
        parser.add_argument(
            f"--{kind}", dest="kind", action="store_const", const=kind, default="", help=help_text
        )
    parser.add_argument("--trace", action="store_true", help="print inputs and effects (with --seed)")
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        help="processes in parallel (default: all cores)",
    )
    options = parser.parse_args()
    if options.seed is None:
        failed = run_seeds(options.first, options.seeds, options.processes, options.kind)
        return 1 if failed else 0
    outcome = run_seed(options.seed, kind=options.kind, tracing=options.trace)
    print(f"seed {outcome.seed}: {outcome.steps} steps; {outcome.problem or 'all checks passed'}")
    return 1 if outcome.problem else 0


if __name__ == "__main__":
    sys.exit(main())
