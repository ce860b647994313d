"""An aggregator that keeps no reports while it is told not to: no histories, no metrics, no messages to targets.

The pipe that TIERMESH_BENCH_SWITCH names takes a line for each change: `off` or `on`. Everything else is `tiermesh
aggregator`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from aggregator.history.writer import MetricsHistory
from aggregator.notifications.notifier import Notifier
from cli.main import main
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import OptimizerMetrics
from services.tasks import start_thread

_reports = True


def _switch(kind: type, name: str) -> None:
    """Have a method return at once while reports are off."""
    method: Callable[..., Any] = getattr(kind, name)

    @functools.wraps(method)
    def switched(*arguments: Any, **named: Any) -> Any:
        return method(*arguments, **named) if _reports else None

    setattr(kind, name, switched)


def _follow() -> None:
    global _reports
    pipe = os.open(os.environ["TIERMESH_BENCH_SWITCH"], os.O_RDWR)  # so that it never ends
    with os.fdopen(pipe, "r") as lines:
        for line in lines:
            _reports = line.strip() == "on"


if __name__ == "__main__":
    for kind in (AggregatorMetrics, OptimizerMetrics):
        for each in vars(kind):
            if each.startswith(("count_", "record_", "set_", "observe_", "change_")):
                _switch(kind, each)
    for recorder in (MetricsHistory, Notifier):
        _switch(recorder, "record")
    start_thread(_follow, "switch")
    sys.exit(main())
