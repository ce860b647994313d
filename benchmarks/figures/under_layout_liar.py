"""under_layout_liar: memory of an aggregator, and steps of honest workers, beside a worker with a huge layout.

The liar (peers/overstating_worker.py) answers first, so it gets the lease to make the initial weights, and describes a
layout of 2^40 elements. It is refused, and comes back every half second with the same lie in Ready. The baseline is the
same cluster without it, before and after. Memory is the peak since the daemon's start; a step's time is the median over
windows.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from types import TracebackType

from benchmarks.figures.under_attack import AttackedCluster
from benchmarks.harness.job_settings import ROOT
from benchmarks.harness.report import report
from services.errors import Failed
from services.tensors.layout import MAX_ELEMENTS

WINDOWS, WINDOW_SECONDS = 5, 5.0
MOST_MEGABYTES, MOST_RATIO = 32.0, 1.1
_LIAR = ROOT / "benchmarks" / "peers" / "overstating_worker.py"
_LIE = f"{MAX_ELEMENTS} elements, expected the "


@dataclass(frozen=True)
class _Run:
    """What one cluster took.

    Attributes:
        peak_bytes: peak memory of the aggregator.
        step_seconds: median of a step's time.
        refusals: what the liar was told.
    """

    peak_bytes: int
    step_seconds: float
    refusals: tuple[str, ...] = ()


class _Cluster(AttackedCluster):
    """A cluster with 2 tiers and 2 workers.

    Args:
        with_liar: whether a lying worker connects before them.
    """

    def __init__(self, *, with_liar: bool) -> None:
        super().__init__({}, "under_layout_liar")
        self._with_liar = with_liar
        self._liar: subprocess.Popen[str] | None = None

    def _start(self, role: str, name: str, *options: str) -> None:
        if self._with_liar and name == "worker-1":
            self._start_liar()
        super()._start(role, name, *options)

    def _start_liar(self) -> None:
        self._liar = subprocess.Popen(
            [sys.executable, str(_LIAR), self.address("aggregator"), str(self._refusals)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._liar.stdout is not None
        if self._liar.stdout.readline() != "joined\n":
            raise Failed("the lying worker could not join the cluster")

    @property
    def _refusals(self) -> Path:
        return self.folder / "refusals.txt"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._liar is not None:
            self._liar.send_signal(signal.SIGKILL)
            self._liar.wait()
        super().__exit__(kind, error, trace)

    def measure(self) -> _Run:
        """Return what the cluster takes from its first step on."""
        self.until(lambda: self.steps() or None, "the first step")
        seconds = median(self.step_seconds(WINDOW_SECONDS) for _ in range(WINDOWS))
        refusals = self._refusals.read_text().splitlines() if self._with_liar else ()
        return _Run(self.memory_bytes("VmHWM"), seconds, tuple(refusals))


def run() -> bool:
    """Measure and report the figures."""
    runs = []
    for with_liar in (False, True, False):
        with ExitStack() as stack:
            runs.append(stack.enter_context(_Cluster(with_liar=with_liar)).measure())
    first, lied_to, last = runs
    told = lied_to.refusals
    if not told or "layout of the initial weights" not in told[0] or not all(_LIE in each for each in told):
        raise Failed(f"the liar was not refused for its layout each time: {told[:2]}")
    quiet = mean((first.step_seconds, last.step_seconds))
    most_quiet = max(first.peak_bytes, last.peak_bytes)
    grown = (lied_to.peak_bytes - most_quiet) / 1e6
    kept = report(
        "under_layout_liar_memory_megabytes",
        grown,
        MOST_MEGABYTES,
        f"peak {lied_to.peak_bytes / 1e6:.0f} MB, without the liar {first.peak_bytes / 1e6:.0f} and "
        f"{last.peak_bytes / 1e6:.0f} MB",
        f"the liar was refused {len(told)} times, the first time for the layout that it described",
        decimals=1,
    )
    quiet_ms = " and ".join(f"{1e3 * each.step_seconds:.1f}" for each in (first, last))
    return (
        report(
            "under_layout_liar_step_ratio",
            lied_to.step_seconds / quiet,
            MOST_RATIO,
            f"median step {1e3 * lied_to.step_seconds:.1f} ms beside the liar, {quiet_ms} ms without",
            decimals=2,
        )
        and kept
    )
