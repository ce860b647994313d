"""tape_overhead: host time of a training pass through the tape on the real ttnn, over the same calls made directly.

The board is mocked (tests/support/contract/mocked_board.py) and its chips compute nothing, so only the host's work is
measured.
"""

from __future__ import annotations

import json

from benchmarks.harness.report import Skipped, median, report
from services.errors import Failed
from tests.support.contract import mocked_board

BOUND = 1.5
ROUNDS = 25
DEVICES = {"n150": 1, "loudbox": 8}
"""Chips of each board. With one chip a call is cheapest, so the tape's share is largest."""


def run() -> bool:
    """Measure on one chip, and data parallel on the eight of a LoudBox."""
    if (why := mocked_board.missing_requirement()) is not None:
        raise Skipped(why)
    reached = [_measure(name, devices) for name, devices in DEVICES.items()]
    return all(reached)


def _measure(name: str, devices: int) -> bool:
    done = mocked_board.run_on_board(
        name, "-m", "benchmarks.figures.tape_on_mocked_board", str(devices), str(ROUNDS)
    )
    if done.returncode:
        raise Failed(f"the mocked board ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    calls, tape, bare = measured["calls"], median(measured["tape"]), median(measured["bare"])
    return report(
        f"tape_overhead_{name}",
        tape / bare,
        BOUND,
        f"through the tape: {1e6 * tape / calls:.1f} us a call ({1e3 * tape:.1f} ms for {calls})",
        f"bare calls:       {1e6 * bare / calls:.1f} us a call ({1e3 * bare:.1f} ms), n = {ROUNDS}",
    )
