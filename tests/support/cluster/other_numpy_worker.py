"""A worker that says it computes with another version of numpy than it has."""

from __future__ import annotations

import sys

from cli.daemon_commands import make_worker_command
from cli.main import main
from services.runtime import process
from training.step import TrainingStep

CLAIMED = "0.9"


class OtherNumpyStep(TrainingStep):
    """Step that claims another version of numpy."""

    def fingerprint(self) -> dict[str, str]:
        """Return what the bits of gradients depend on, with one lie."""
        return {**super().fingerprint(), "numpy": CLAIMED}


if __name__ == "__main__":
    process.tune_allocator()
    process.limit_blas_to_one_thread()
    sys.exit(
        main(worker_command=make_worker_command("tests.support.cluster.other_numpy_worker:OtherNumpyStep"))
    )
