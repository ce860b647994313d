"""What people are told of a step whose gradient is not finite."""

from __future__ import annotations

from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, NonFinite
from services.protocol.non_finite import (
    MAX_NAMED_MICRO_BATCHES,
    MAX_PARAMETER_NAME_CHARACTERS,
    describe_non_finite,
)


def found(number: int) -> list[NonFinite]:
    """So many micro-batches."""
    return [NonFinite(worker="a", micro_batch=index, parameter="w") for index in range(number)]


def test_micro_batches_are_named_whatever_they_travelled_in() -> None:
    told = "the gradient is not finite: worker a, micro-batch 0, parameter w"
    assert describe_non_finite(found(1), FLOAT32) == describe_non_finite(found(1), FLOAT16) == told


def test_a_line_names_a_few_and_counts_the_others() -> None:
    assert "more" not in describe_non_finite(found(MAX_NAMED_MICRO_BATCHES), FLOAT32)
    told = describe_non_finite(found(MAX_NAMED_MICRO_BATCHES + 3), FLOAT32)
    assert told.count("worker a") == MAX_NAMED_MICRO_BATCHES
    assert told.endswith("; and 3 micro-batches more")


def test_a_sum_of_finite_gradients() -> None:
    assert describe_non_finite([], FLOAT32) == describe_non_finite([], BFLOAT16)
    assert "their sum overflowed" in describe_non_finite([], FLOAT32)
    assert "travels as float16, whose largest is 65504" in describe_non_finite([], FLOAT16)


def test_whatever_a_worker_calls_a_parameter_the_line_is_one_and_short() -> None:
    odd = NonFinite(worker="a", micro_batch=0, parameter="w\n\x1b[2J" + "x" * 10_000)
    told = describe_non_finite([odd], FLOAT32)
    assert told.isprintable()
    assert len(told) < MAX_PARAMETER_NAME_CHARACTERS + 100
