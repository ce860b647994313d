"""Tests of the text about a step whose gradient is not finite."""

from __future__ import annotations

from protos.tensors_pb2 import BFLOAT16, FLOAT16, FLOAT32, NonFinite
from services.protocol.non_finite import (
    MAX_NAMED_MICRO_BATCHES,
    MAX_PARAMETER_NAME_CHARACTERS,
    describe_non_finite,
)


def make_found(count: int) -> list[NonFinite]:
    return [NonFinite(worker="a", micro_batch=index, parameter="w") for index in range(count)]


def test_micro_batch_is_named_for_every_wire_type() -> None:
    for dtype in (FLOAT32, FLOAT16):
        text = describe_non_finite(make_found(1), dtype)
        assert all(fact in text for fact in ("worker a", "micro-batch 0", "parameter w"))


def test_line_names_a_few_micro_batches_and_counts_the_others() -> None:
    assert "more" not in describe_non_finite(make_found(MAX_NAMED_MICRO_BATCHES), FLOAT32)
    text = describe_non_finite(make_found(MAX_NAMED_MICRO_BATCHES + 3), FLOAT32)
    assert text.count("worker a") == MAX_NAMED_MICRO_BATCHES
    assert "3 more" in text


def test_overflows_of_a_sum_and_of_float16_are_distinguished() -> None:
    assert describe_non_finite([], FLOAT32) == describe_non_finite([], BFLOAT16)
    assert "sum overflowed" in describe_non_finite([], FLOAT32)
    assert "65504" in describe_non_finite([], FLOAT16)


def test_odd_parameter_name_gives_one_short_line() -> None:
    odd = NonFinite(worker="a", micro_batch=0, parameter="w\n\x1b[2J" + "x" * 10_000)
    text = describe_non_finite([odd], FLOAT32)
    assert text.isprintable()
    assert len(text) < MAX_PARAMETER_NAME_CHARACTERS + 100
