"""The waits of a lease's passes for other stages are measured, and recorded in the timeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from mesh.exact_transfer import ExactArray
from services.pipeline.schedule import Pass
from training.pipeline.exchange import LocalExchange
from worker.observed_exchange import ObservedExchange
from worker.row_exchange import NeighbourLost


class _Row(LocalExchange):
    """An exchange of a row that ends with its neighbour."""

    def receive(self, one: Pass) -> ExactArray:
        if one.range_index > 1:
            raise NeighbourLost("w2", "gone")
        return super().receive(one)

    def drop(self) -> None: ...

    def close(self) -> None: ...


def _ticks() -> Iterator[float]:
    seconds = 0.0
    while True:
        yield seconds
        seconds += 0.5


def test_the_time_of_all_calls_is_added_up_also_of_those_that_fail() -> None:
    ticks, array = _ticks(), np.ones(3, np.float32)
    exchange = ObservedExchange(_Row(), 7, lambda: next(ticks))
    exchange.send(Pass(False, 1, 4), array)
    assert exchange.receive(Pass(False, 1, 4)) is array
    exchange.send_tied(4, array)
    assert exchange.receive_tied(4) is array
    assert exchange.waited_seconds == 2.0
    with pytest.raises(NeighbourLost):
        exchange.receive(Pass(False, 2, 4))
    assert exchange.waited_seconds == 2.5
