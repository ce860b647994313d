"""Run seeds of simulated clusters with an insider, or replay one.

python -m tests.insider --seeds 500                 seeds 0 to 499, on all cores
python -m tests.insider --seed 123 --trace          one seed, with all inputs and effects
python -m tests.insider --rows --seeds 500          half of the jobs have a pipeline, with the insider in a row
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial

from tests.insider.seeds import run_limited, run_seed
from tests.simulation.seeds import run_all


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.insider", description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="number of seeds")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    parser.add_argument("--rows", action="store_true", help="also jobs with a pipeline")
    parser.add_argument("--trace", action="store_true", help="print inputs and effects (with --seed)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes in parallel")
    options = parser.parse_args()
    if options.seed is None:
        seeds = range(options.first, options.first + options.seeds)
        run = partial(run_limited, rows=options.rows)
        return 1 if run_all(seeds, options.processes, run, f"tests.insider{' --rows' * options.rows}") else 0
    outcome = run_seed(options.seed, rows=options.rows, tracing=options.trace)
    print(f"seed {outcome.seed}: {outcome.steps} steps; {outcome.problem or 'all checks passed'}")
    return 1 if outcome.problem else 0


if __name__ == "__main__":
    sys.exit(main())
