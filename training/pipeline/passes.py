"""The passes of a lease's micro-batches through the ranges of one process, in the order of a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from services.pipeline.exchange import AddLeaf, ExactArray, FinishedPass, PassExchange
from services.pipeline.schedule import Pass, Schedule
from training.range_step import Float32Array, PassInFlight, RangeStep


class PassPhase(str, Enum):
    """The two phases of a micro-batch that can be observed."""

    FORWARD_PASS = "FORWARD_PASS"
    BACKWARD_PASS = "BACKWARD_PASS"


class PassObserver(Protocol):
    """Gives a context manager that a pass runs in."""

    def __call__(self, phase: PassPhase, one: Pass | None = None) -> AbstractContextManager[None]:
        """Return the context of a pass.

        Args:
            phase: its phase.
            one: its range and micro-batch in the step; None for the whole model.
        """


def unobserved(phase: PassPhase, one: Pass | None = None) -> AbstractContextManager[None]:
    """Return a context in which nothing is observed."""
    del phase, one
    return nullcontext()


@dataclass
class Passes:
    """The passes of a lease that are under way.

    Attributes:
        step: step of the job.
        first: index of the lease's first micro-batch.
        schedule: the schedule.
        ranges: the ranges of this process, by index.
        add_leaf: see `AddLeaf`.
        exchange: carries arrays between ranges.
        around_phase: gives a context manager that a pass runs in, without waits for other ranges.
        losses: losses of the micro-batches that the last range has ended, in index order.
        non_finite: first parameter with a gradient that is not finite, by micro-batch of the lease.
    """

    step: int
    first: int
    schedule: Schedule
    ranges: Mapping[int, RangeStep]
    add_leaf: AddLeaf
    exchange: PassExchange
    around_phase: PassObserver
    losses: list[float] = field(default_factory=list)
    non_finite: dict[int, str] = field(default_factory=dict)
    _in_flight: dict[Pass, PassInFlight] = field(default_factory=dict)  # by the forward pass

    def run(self, one: Pass) -> None:
        """Run a pass and send its result to the next range."""
        in_step = self._in_step(one)
        received = self.exchange.receive(in_step) if self.schedule.is_fed(one) else None
        if not one.is_backward:
            with self._around(PassPhase.FORWARD_PASS, in_step):
                self._in_flight[one], left = self.ranges[one.range_index].forward(
                    self.step, in_step.micro_batch, received
                )
            self._send(one, left)
            return
        takes_tied = self.ranges[one.range_index].takes_tied_part
        tied = self.exchange.receive_tied(in_step.micro_batch) if takes_tied else None
        finished = self._backward(one, received, tied)
        self._send(one, finished.gradient)
        if finished.tied is not None:  # after the gradient, which is needed sooner
            self.exchange.send_tied(in_step.micro_batch, finished.tied)

    def clear(self) -> None:
        """Free what passes under way keep on the meshes."""
        for each in self._in_flight.values():
            each.tape.clear()

    def _send(self, one: Pass, result: ExactArray | None) -> None:
        successor = self.schedule.successor(one)
        if successor is not None:
            assert result is not None
            self.exchange.send(self._in_step(successor), result)

    def _in_step(self, one: Pass) -> Pass:
        return one._replace(micro_batch=self.first + one.micro_batch)

    def _around(self, phase: PassPhase, in_step: Pass) -> AbstractContextManager[None]:
        return self.around_phase(phase, in_step if self.schedule.ranges > 1 else None)

    def _backward(self, one: Pass, gradient: ExactArray | None, tied: ExactArray | None) -> FinishedPass:
        each, in_step, forward = (
            self.ranges[one.range_index],
            self._in_step(one),
            one._replace(is_backward=False),
        )
        in_flight = self._in_flight[forward]

        def compute(out: Float32Array, ready: Callable[[int], None]) -> FinishedPass:
            with self._around(PassPhase.BACKWARD_PASS, in_step):
                return each.backward(in_flight, gradient, tied, out, ready)

        finished = self.add_leaf(one.range_index, in_step.micro_batch, compute)
        del self._in_flight[forward]
        if finished.loss is not None:
            self.losses.append(finished.loss)
        if finished.non_finite:
            self.non_finite.setdefault(one.micro_batch, finished.non_finite)
        return finished
