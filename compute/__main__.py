"""The compute process: `python -m compute --socket FD --name WORKER [--step FACTORY]`, spawned by a worker's daemon."""

from __future__ import annotations

from services.runtime import process
from services.runtime.child_start import begin_child

if __name__ == "__main__":
    begin_child()
    process.tune_allocator()
    process.limit_blas_to_one_thread()  # before numpy is imported
    from compute.main import main

    main()
