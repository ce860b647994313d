"""The tape: order, sums, placements, and that it frees values while it runs. Numbers stand for tensors."""

from __future__ import annotations

import operator
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from mesh.axes import Axes
from mesh.placement import PARTIAL, REPLICATED, ROWS, WHOLE, Placements, over_data, over_tensor, sharded
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable

MESH: Any = SimpleNamespace(
    tt=SimpleNamespace(
        add=operator.add,
        all_reduce=lambda value, cluster_axis: value + (10, 1000)[cluster_axis],
        reduce_scatter=lambda value, dim, cluster_axis: value + 100_000 * dim,
    ),
    shape=(2, 4),
    axes=Axes(data=0, tensor=1),
)
"""Stand-in for the sum over devices, visible in the number: a sum over rows adds 10, over columns 1,000."""


class KeptFactor:
    """Factor that a backward function keeps, and that a weak reference can watch."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


def make_parameter(name: str, value: float) -> Parameter:
    made = Parameter(name, (1,), export_name=name)
    made.value = value
    return made


def scale(tape: Tape, x: Variable, factor: float | KeptFactor) -> Variable:
    kept = factor if isinstance(factor, KeptFactor) else KeptFactor(factor)
    return tape.record(x.value * kept.factor, (x,), lambda gradient: (gradient * kept.factor,))


def multiply(tape: Tape, x: Variable, y: Variable) -> Variable:
    x_value, y_value = x.value, y.value
    return tape.record(x_value * y_value, (x, y), lambda gradient: (gradient * y_value, gradient * x_value))


def run_backward(tape: Tape, loss: Variable, seed: float = 1.0) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    tape.backward(loss, seed, lambda parameter, gradient: found.append((parameter.name, gradient)))
    return found


def test_gradients_come_last_used_first_and_shared_ones_once():
    tape = Tape(MESH)
    a, b = make_parameter("a", 3.0), make_parameter("b", 5.0)
    loss = multiply(tape, multiply(tape, a, b), a)  # a * b * a
    assert loss.value == 45.0
    assert run_backward(tape, loss, 2.0) == [
        ("b", 2 * 9.0),
        ("a", 2 * 2 * 15.0),
    ]
    assert len(tape) == 0


def test_values_are_freed_while_the_pass_runs():
    watched: list[weakref.ref[KeptFactor]] = []
    alive: list[list[bool]] = []

    def kept_and_watched(tape: Tape, x: Variable, factor: float) -> Variable:
        kept = KeptFactor(factor)
        watched.append(weakref.ref(kept))

        def backward(gradient: float) -> tuple[float]:
            alive.append([ref() is not None for ref in watched])
            return (gradient * kept.factor,)

        return tape.record(x.value * factor, (x,), backward)

    tape = Tape(MESH)
    x: Variable = make_parameter("x", 1.0)
    for factor in (2.0, 3.0, 4.0):
        x = kept_and_watched(tape, x, factor)
    assert run_backward(tape, x) == [("x", 24.0)]
    assert alive == [[True, True, True], [True, True, False], [True, False, False]]
    assert all(ref() is None for ref in watched)


def test_nothing_is_kept_when_not_recording():
    tape = Tape(MESH, recording=False)
    result = scale(tape, make_parameter("a", 2.0), 3.0)
    assert result.value == 6.0 and not result.requires_grad and len(tape) == 0


def test_constants_get_no_gradient_and_need_no_record():
    tape = Tape(MESH)
    constant = Variable(2.0, WHOLE)
    assert not scale(tape, constant, 3.0).requires_grad
    assert len(tape) == 0


def test_the_gradient_of_a_replicated_parameter_is_summed_over_devices_once():
    tape = Tape(MESH)
    rows = Variable(2.0, ROWS)
    weight = make_parameter("w", 3.0)
    loss = multiply(tape, multiply(tape, rows, weight), weight)
    assert loss.placements == ROWS
    assert run_backward(tape, loss) == [("w", 12.0 + 10)]


def test_the_gradient_of_a_sharded_parameter_is_summed_and_cut_as_the_parameter_is():
    tape = Tape(MESH)
    weight = make_parameter("w", 3.0)
    weight.placements = over_data(3)
    loss = multiply(tape, Variable(2.0, ROWS), weight)
    assert loss.placements == ROWS
    assert run_backward(tape, loss) == [("w", 2.0 + 300_000)]


def test_partial_gradients_are_summed_over_tensor_devices_before_the_next_operation():
    """Use two layers by columns on one operand, as gate and up of a feed-forward: one sum for both."""
    tape = Tape(MESH)
    x = scale(tape, make_parameter("x", 2.0), 5.0)
    gate = tape.record(x.value, (x,), lambda gradient: (gradient * 3,), over_tensor(3))
    up = tape.record(x.value, (x,), lambda gradient: (gradient * 4,), over_tensor(3))
    both = tape.record(gate.value, (gate, up), lambda gradient: (gradient, gradient))
    assert both.placements == over_tensor(3)
    loss = tape.record(both.value, (both,), lambda gradient: (gradient,), WHOLE)
    assert run_backward(tape, loss) == [("x", 5.0 * (7 + 1000))]


def test_a_partial_summand_is_completed_before_a_whole_one_is_added():
    """Use a residual stream, where x enters a layer by columns and a sum."""
    tape = Tape(MESH)
    x = scale(tape, make_parameter("x", 2.0), 5.0)
    columns = tape.record(x.value, (x,), lambda gradient: (gradient * 3,), over_tensor(3))
    back = tape.record(columns.value, (columns,), lambda gradient: (gradient,), WHOLE)
    assert run_backward(tape, multiply(tape, x, back)) == [("x", 5.0 * (10.0 + (30.0 + 1000)))]


def test_sharded_inputs_have_sharded_gradients():
    tape = Tape(MESH)
    weight = make_parameter("w", 3.0)
    weight.placements = over_tensor(3)
    columns = Variable(2.0, Placements(sharded(2), sharded(3)))
    loss = multiply(tape, columns, weight)
    assert loss.placements == columns.placements
    assert run_backward(tape, loss) == [("w", 2.0 + 10)]


@pytest.mark.parametrize(
    ("one", "other"),
    [(over_data(2), over_data(0)), (over_tensor(2), over_tensor(3)), (Placements(PARTIAL, PARTIAL), WHOLE)],
)
def test_operands_with_different_placements_are_refused(one: Placements, other: Placements):
    with pytest.raises(ValueError, match="placements"):
        multiply(Tape(MESH), Variable(1.0, one), Variable(1.0, other))


def test_an_operation_may_not_leave_a_partial_sum():
    with pytest.raises(ValueError, match="partial sum"):
        Tape(MESH).record(
            1.0, (make_parameter("w", 1.0),), lambda gradient: (gradient,), Placements(PARTIAL, PARTIAL)
        )


def test_recomputing_gives_the_same_gradients_and_keeps_nothing():
    a, b = make_parameter("a", 3.0), make_parameter("b", 5.0)
    calls: list[bool] = []

    def block(tape: Tape, x: Variable) -> Variable:
        calls.append(True)
        return multiply(tape, scale(tape, multiply(tape, x, b), 2.0), a)

    def loss(tape: Tape, *, recompute: bool) -> Variable:
        x = scale(tape, a, 7.0)
        for _ in range(2):
            x = tape.recompute(lambda y: block(tape, y), x) if recompute else block(tape, x)
        return scale(tape, x, 1.0)

    plain = Tape(MESH)
    expected = run_backward(plain, loss(plain, recompute=False))
    calls.clear()
    tape = Tape(MESH)
    final = loss(tape, recompute=True)
    assert len(tape) == 1 + 2 + 1
    assert len(calls) == 2
    assert sorted(run_backward(tape, final)) == sorted(expected)
    assert len(calls) == 4
    assert len(tape) == 0


def test_a_recomputed_function_must_end_with_its_result():
    tape = Tape(MESH)
    a = make_parameter("a", 3.0)

    def block(x: Variable) -> Variable:
        result = scale(tape, x, 2.0)
        scale(tape, x, 3.0)
        return result

    result = tape.recompute(block, scale(tape, a, 1.0))
    with pytest.raises(ValueError, match=r"recompute.*result"):
        run_backward(tape, scale(tape, result, 1.0))


def test_nothing_is_recomputed_when_not_recording():
    tape = Tape(MESH, recording=False)
    assert tape.recompute(lambda x: scale(tape, x, 3.0), make_parameter("a", 2.0)).value == 6.0
    assert len(tape) == 0


def test_backward_needs_the_last_recorded_loss():
    tape = Tape(MESH)
    first = scale(tape, make_parameter("a", 2.0), 3.0)
    scale(tape, first, 2.0)
    with pytest.raises(ValueError, match="last record"):
        run_backward(tape, first)
    with pytest.raises(ValueError, match="last record"):
        run_backward(Tape(MESH), first)


def test_a_value_that_does_not_enter_the_loss_is_an_error():
    tape = Tape(MESH)
    a = make_parameter("a", 2.0)
    scale(tape, a, 3.0)
    with pytest.raises(ValueError, match="does not enter the result"):
        run_backward(tape, scale(tape, a, 2.0))


def test_an_abandoned_tape_leaves_nothing_on_parameters():
    a = make_parameter("a", 2.0)
    scale(Tape(MESH), a, 3.0)
    tape = Tape(MESH)
    assert run_backward(tape, scale(tape, a, 5.0)) == [("a", 5.0)]


def test_a_pass_cut_in_two_gives_the_gradients_of_the_whole():
    a, b = make_parameter("a", 3.0), make_parameter("b", 5.0)
    first, second = Tape(MESH), Tape(MESH)
    left = scale(first, multiply(first, Variable(2.0, WHOLE), a), 7.0)
    entered = second.begin(left.value, left.placements)
    result = multiply(second, multiply(second, entered, b), entered)
    assert result.value == 42.0 * 42.0 * 5.0
    assert run_backward(second, result) == [("b", 42.0 * 42.0)]
    assert entered.gradient is not None
    assert run_backward(first, left, entered.gradient.value) == [("a", 2 * 42.0 * 5.0 * 7.0 * 2.0)]
    assert not Tape(MESH, recording=False).begin(1.0, WHOLE).requires_grad


def test_tapes_in_flight_keep_their_gradients_apart():
    weight = make_parameter("w", 3.0)
    tapes = [Tape(MESH), Tape(MESH)]
    results = [
        multiply(tape, Variable(at, WHOLE), weight) for tape, at in zip(tapes, (2.0, 5.0), strict=True)
    ]
    found = [run_backward(tape, result) for tape, result in zip(tapes, results, strict=True)]
    assert found == [[("w", 2.0)], [("w", 5.0)]]


def test_the_gradient_of_a_copy_leaves_unreduced_and_is_added_before_the_sum_over_devices():
    table, copy = make_parameter("table", 3.0), make_parameter("table", 3.0)
    copy.partial_gradient = Placements(PARTIAL, REPLICATED)
    first, last = Tape(MESH), Tape(MESH)
    own = multiply(first, Variable(2.0, ROWS), table)
    assert run_backward(last, multiply(last, Variable(5.0, ROWS), copy)) == [("table", 5.0)]
    first.add_summand(table, 5.0, Placements(PARTIAL, REPLICATED))
    assert run_backward(first, own) == [("table", 5.0 + 2.0 + 10)]
