"""Splits by measured times: a slowest stage as fast as can be within the memory of a chip, then a small largest one."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.models import CustomConfig, GPT2Config, ModelConfig
from services.pipeline.split import Split
from services.sizing.measured_split import BlockTimes, MeasuredBalance, PassTime
from services.sizing.pipeline import size_stages

DATA = DataConfig.model_validate({"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},)})
GPT2 = GPT2Config(num_blocks=6, num_heads=4, embedding_dim=256, max_sequence_length=128, dropout_prob=0.0)
OWN = CustomConfig(model_type="own:Model", max_sequence_length=128, options={"num_blocks": 6})
VOCABULARY = 5000
NOTHING = PassTime(0.0, 0.0)


def job(stages: tuple[int, ...], model: ModelConfig = GPT2, **pipeline: Any) -> JobConfig:
    return JobConfig.model_validate(
        {"model": model, "data": DATA, "num_workers": len(stages), "gradient_accumulation_steps": 8,
         "pipeline": {"blocks_per_stage": stages, **pipeline}}
    )  # fmt: skip


def balance(config: JobConfig, *seconds: float, border: PassTime = NOTHING) -> MeasuredBalance:
    times = BlockTimes(tuple(PassTime(each, 2 * each) for each in seconds), border)
    return MeasuredBalance(config, times, VOCABULARY, dtype="bfloat16", banks=12)


def test_the_last_stage_has_fewer_blocks_if_its_projection_takes_time() -> None:
    assert balance(job((3, 3)), 1, 1, 1, 1, 1, 5).find() == (5, 1)
    assert balance(job((3, 3)), 5, 1, 1, 1, 1, 1).find() == (1, 5)


def test_blocks_of_an_own_model_count_each_by_itself() -> None:
    config = job((2, 2, 2), OWN)
    found = balance(config, 1, 1, 1, 3, 2, 1)
    assert found.find() == (3, 1, 2)
    assert found.describe((3, 1, 2)).memory_bytes == (None, None, None)


@given(st.lists(st.integers(1, 9), min_size=6, max_size=6), st.integers(0, 14))
def test_no_split_that_fits_is_faster_and_then_none_smaller(seconds: list[int], which: int) -> None:
    found = balance(job((2, 2, 2)), *seconds)
    splits = [
        tuple(stop - start for start, stop in pairwise((0, *each, 6)))
        for each in combinations(range(1, 6), 2)
    ]
    described = [found.describe(each) for each in splits]
    bytes_by_split = [max(each or 0 for each in one.memory_bytes) for one in described]
    chip_bytes = sorted([min(bytes_by_split) - 1, *bytes_by_split])[which % (len(splits) + 1)]
    expected = min(
        (
            (max(one.stage_seconds), needed)
            for one, needed in zip(described, bytes_by_split, strict=True)
            if needed <= chip_bytes
        ),
        default=None,
    )
    split = found.find(chip_bytes)
    if split is None:
        assert expected is None
        return
    chosen = found.describe(split)
    assert (max(chosen.stage_seconds), max(each or 0 for each in chosen.memory_bytes)) == expected


def test_a_stage_needs_what_validate_says() -> None:
    config = job((3, 1, 2))
    sizes = size_stages(config, VOCABULARY, dtype="bfloat16", banks=12)
    described = balance(job((2, 2, 2)), *[1] * 6).describe((3, 1, 2))
    assert described.memory_bytes == tuple(each.memory_bytes for each in sizes)


def test_the_bubble_of_even_stages_is_that_of_the_formula() -> None:
    described = balance(job((2, 2, 2), hide_transfers=False), *[1] * 6).describe((2, 2, 2))
    assert described.bubble == pytest.approx(2 / (8 + 2))
    assert described.step_seconds == pytest.approx(10 * 6)
    assert described.stage_seconds == (6, 6, 6)


def test_an_interleaved_stage_has_a_border_for_each_range() -> None:
    config = job((3, 3), schedule="interleaved_1f1b", ranges_per_stage=2)
    found = balance(config, 1, 1, 1, 1, 1, 3, border=PassTime(0.5, 0.25))
    assert found.find() == (4, 2)
    assert found.describe((4, 2)).stage_seconds == (12 + 1.5, 12 + 1.5)
    times = found.times.of_ranges(Split((4, 2), 2).ranges)
    assert (times.forward, times.backward) == ([2.5, 1.5, 2.5, 3.5], [4.25, 2.25, 4.25, 6.25])
