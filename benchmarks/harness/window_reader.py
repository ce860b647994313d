"""Read the micro-batches of a job from a file of token ids, in a process of its own, whose memory is measured.

`python -m benchmarks.harness.window_reader FILE MICRO_BATCHES` prints, as JSON, the peak memory in bytes after a tenth
of the micro-batches and after all of them, and the seconds.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from services.corpora.token_file import TokenFile
from training.data.tokens import TokenDataset

BATCH_SIZE, TOKENS = 16, 1024


def main(path: Path, micro_batches: int) -> None:
    """Read them, as the worker's training step does, and print the result."""
    started = time.perf_counter()
    dataset = TokenDataset(
        [TokenFile.open(path, "FILE")],
        seed=1,
        batch_size=BATCH_SIZE,
        validation_batch_size=BATCH_SIZE,
        tokens=TOKENS,
    )
    early_bytes = 0
    for step in range(micro_batches):
        dataset.micro_batch(step, 0)
        if step == micro_batches // 10:
            early_bytes = _peak_bytes()
    result = {"early_bytes": early_bytes, "bytes": _peak_bytes(), "seconds": time.perf_counter() - started}
    print(json.dumps(result))


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
