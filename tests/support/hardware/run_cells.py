"""Run in a process of its own: the models under every strategy that fits a mesh, on the real one.

    python run_cells.py FOLDER ROWSxCOLUMNS

Each outcome is put in FOLDER as MODEL-STRATEGY.npz; what failed as MODEL-STRATEGY.error.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from tests.support.contract.steps import STRATEGIES
from tests.support.hardware.outcomes import TRAINED, fits, outcome, save


def main(folder: Path, rows: int, columns: int) -> None:
    """Run them all, whatever fails."""
    for strategy in STRATEGIES:
        if not fits(strategy, (rows, columns)):
            continue
        for model in TRAINED:
            try:
                found = outcome(
                    model, strategy, (rows, columns), backend="ttnn", dtype="bfloat16", folder=folder
                )
                save(folder / f"{model}-{strategy}.npz", found)
            except Exception:
                (folder / f"{model}-{strategy}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    rows, columns = map(int, sys.argv[2].split("x"))
    main(Path(sys.argv[1]), rows, columns)
