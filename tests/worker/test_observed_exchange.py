"""The waits of a lease's passes for other stages are measured, and recorded in the timeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from services.pipeline.exchange import ExactArray, LocalExchange
from services.pipeline.schedule import Pass
from worker.device_watch import DeviceWatch
from worker.observed_exchange import ObservedExchange
from worker.row_exchange import NeighbourLost


class _Row(LocalExchange):
    """An exchange of a row that ends with its neighbour.

    Attributes:
        watch: the device watch to look at while something is received; None for none.
        owed: what it said then.
    """

    def __init__(self, watch: DeviceWatch | None = None) -> None:
        super().__init__()
        self.watch = watch
        self.owed: list[str] = []

    def receive(self, one: Pass) -> ExactArray:
        if self.watch is not None:
            self.owed.append(self.watch.report().waits_for)
        if one.range_index > 1:
            raise NeighbourLost("w2", "gone")
        return super().receive(one)

    def worker_of(self, range_index: int) -> str:
        return f"w{range_index}"

    def drop(self) -> None: ...

    def close(self) -> None: ...


def _ticks() -> Iterator[float]:
    seconds = 0.0
    while True:
        yield seconds
        seconds += 0.5


def test_the_time_of_all_calls_is_added_up_also_of_those_that_fail() -> None:
    ticks, array = _ticks(), np.ones(3, np.float32)
    exchange = ObservedExchange(_Row(), "a", 7, lambda: next(ticks), DeviceWatch(lambda: 0.0))
    exchange.send(Pass(False, 1, 4), array)
    assert exchange.receive(Pass(False, 1, 4)) is array
    exchange.send_tied(4, array)
    assert exchange.receive_tied(4) is array
    assert exchange.waited_seconds == 2.0
    with pytest.raises(NeighbourLost):
        exchange.receive(Pass(False, 2, 4))
    assert exchange.waited_seconds == 2.5


def test_the_device_watch_names_the_worker_that_is_waited_for() -> None:
    watch, array = DeviceWatch(lambda: 0.0), np.ones(3, np.float32)
    row = _Row(watch)
    exchange = ObservedExchange(row, "a", 7, lambda: 0.0, watch)
    for one in (Pass(False, 1, 4), Pass(True, 0, 5)):
        exchange.send(one, array)
        exchange.receive(one)
    assert row.owed == ["activation of micro-batch 4, w0", "gradient of micro-batch 5, w1"]
    assert watch.report().waits_for == ""
