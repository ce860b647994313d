"""Script for a process on a real mesh: run the models under every strategy that fits the mesh.

    python -m tests.support.hardware.run_cells FOLDER ROWSxCOLUMNS

Writes each outcome to FOLDER/MODEL-STRATEGY.npz, and each failure to FOLDER/MODEL-STRATEGY.error.
"""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from tests.support.contract.steps import STRATEGIES
from tests.support.hardware.outcomes import TRAINED, fits, run_step, save


def main(folder: Path, rows: int, columns: int) -> None:
    """Run all cells; a failure doesn't stop the others."""
    for strategy in STRATEGIES:
        if not fits(strategy, (rows, columns)):
            continue
        for model in TRAINED:
            try:
                found = run_step(
                    model, strategy, (rows, columns), backend="ttnn", dtype="bfloat16", folder=folder
                )
                save(folder / f"{model}-{strategy}.npz", found)
            except Exception:
                (folder / f"{model}-{strategy}.error").write_text(traceback.format_exc())


if __name__ == "__main__":
    rows, columns = map(int, sys.argv[2].split("x"))
    main(Path(sys.argv[1]), rows, columns)
