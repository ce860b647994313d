"""The tape: order, sums, placement, and that it frees what it kept while it runs. Numbers stand for tensors."""

from __future__ import annotations

import operator
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from worker.autograd import Gradient, Parameter, Placement, Tape, Variable

MESH: Any = SimpleNamespace(tt=SimpleNamespace(add=operator.add))


class Kept:
    """Something that a backward function holds on to, and that can be watched."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


def parameter(name: str, value: float) -> Parameter:
    made = Parameter(name, (1,), export_name=name)
    made.value = value
    return made


def times(tape: Tape, x: Variable, factor: float | Kept) -> Variable:
    kept = factor if isinstance(factor, Kept) else Kept(factor)
    return tape.record(x.value * kept.factor, (x,), lambda gradient: (gradient * kept.factor,))


def product(tape: Tape, x: Variable, y: Variable) -> Variable:
    x_value, y_value = x.value, y.value
    return tape.record(x_value * y_value, (x, y), lambda gradient: (gradient * y_value, gradient * x_value))


def finals(tape: Tape, loss: Variable, seed: float = 1.0) -> list[tuple[str, float, Placement]]:
    found: list[tuple[str, float, Placement]] = []

    def take(of: Parameter, gradient: Gradient) -> None:
        found.append((of.name, gradient.value, gradient.placement))

    tape.backward(loss, seed, take)
    return found


def test_gradients_come_last_used_first_and_shared_ones_once():
    tape = Tape(MESH)
    a, b = parameter("a", 3.0), parameter("b", 5.0)
    loss = product(tape, product(tape, a, b), a)  # a * b * a
    assert loss.value == 45.0
    assert finals(tape, loss, 2.0) == [
        ("b", 2 * 9.0, Placement.REPLICATED),
        ("a", 2 * 2 * 15.0, Placement.REPLICATED),
    ]
    assert len(tape) == 0


def test_values_are_freed_while_the_pass_runs():
    watched: list[weakref.ref[Kept]] = []
    alive: list[list[bool]] = []

    def kept_and_watched(tape: Tape, x: Variable, factor: float) -> Variable:
        kept = Kept(factor)
        watched.append(weakref.ref(kept))

        def backward(gradient: float) -> tuple[float]:
            alive.append([ref() is not None for ref in watched])
            return (gradient * kept.factor,)

        return tape.record(x.value * factor, (x,), backward)

    tape = Tape(MESH)
    x: Variable = parameter("x", 1.0)
    for factor in (2.0, 3.0, 4.0):
        x = kept_and_watched(tape, x, factor)
    assert finals(tape, x) == [("x", 24.0, Placement.REPLICATED)]
    assert alive == [[True, True, True], [True, True, False], [True, False, False]]
    assert all(ref() is None for ref in watched)


def test_nothing_is_kept_when_not_recording():
    tape = Tape(MESH, recording=False)
    result = times(tape, parameter("a", 2.0), 3.0)
    assert result.value == 6.0 and not result.requires_grad and len(tape) == 0


def test_constants_get_no_gradient_and_need_no_record():
    tape = Tape(MESH)
    constant = Variable(2.0, Placement.REPLICATED)
    assert not times(tape, constant, 3.0).requires_grad
    assert len(tape) == 0


def test_a_parameter_beside_sharded_values_has_a_partial_gradient():
    tape = Tape(MESH)
    rows = Variable(2.0, Placement.SHARDED)
    weight = parameter("w", 3.0)
    loss = product(tape, product(tape, rows, weight), weight)
    assert loss.placement is Placement.SHARDED
    assert finals(tape, loss) == [("w", 12.0, Placement.PARTIAL)]


def test_a_partial_sum_is_no_operand():
    with pytest.raises(ValueError, match="partial sum"):
        times(Tape(MESH), Variable(1.0, Placement.PARTIAL), 2.0)


def test_summands_of_different_placement_are_refused():
    tape = Tape(MESH)
    weight = parameter("w", 3.0)
    replicated = times(tape, weight, 2.0)
    loss = product(tape, product(tape, Variable(1.0, Placement.SHARDED), weight), replicated)
    with pytest.raises(ValueError, match="gradient was given a sharded summand"):
        finals(tape, loss)


def test_backward_wants_the_last_recorded_loss():
    tape = Tape(MESH)
    first = times(tape, parameter("a", 2.0), 3.0)
    times(tape, first, 2.0)
    with pytest.raises(ValueError, match="recorded last"):
        finals(tape, first)
    with pytest.raises(ValueError, match="recorded last"):
        finals(Tape(MESH), first)


def test_a_value_that_does_not_enter_the_loss_is_an_error():
    tape = Tape(MESH)
    a = parameter("a", 2.0)
    times(tape, a, 3.0)
    with pytest.raises(ValueError, match="does not enter the loss"):
        finals(tape, times(tape, a, 2.0))


def test_a_tape_that_was_given_up_leaves_no_trace_on_parameters():
    a = parameter("a", 2.0)
    times(Tape(MESH), a, 3.0)
    tape = Tape(MESH)
    assert finals(tape, times(tape, a, 5.0)) == [("a", 5.0, Placement.REPLICATED)]
