"""What is said of workers that a step is too small for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.models import GPT2Config, LinearRegressionConfig
from services.sizing.idle import advise_on_idle_workers

DATA = DataConfig.model_validate({"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},)})
OTHER = "but other windows are drawn"


def job(**settings: Any) -> JobConfig:
    return JobConfig.model_validate({"model": GPT2Config(num_blocks=4), "data": DATA, **settings})


@pytest.mark.parametrize(
    ("settings", "workers", "line"),
    [
        (
            {"batch_size": 60},
            5,
            "a step has 1 micro-batch, so 1 of 5 workers computes; gradient_accumulation_steps: 5 with batch_size: 12 "
            f"uses all 5 (as many sequences a step, {OTHER})",
        ),
        (
            {"batch_size": 64},
            5,
            "a step has 1 micro-batch, so 1 of 5 workers computes; gradient_accumulation_steps: 5 with batch_size: 13 "
            f"uses all 5 (65 sequences a step in place of 64, {OTHER})",
        ),
        (
            {"batch_size": 8, "num_workers": 2, "gradient_accumulation_steps": 2},
            6,
            "a step has 4 micro-batches, so 4 of 6 workers compute; gradient_accumulation_steps: 6 with batch_size: 3 "
            f"uses all 6 (36 sequences a step in place of 32, {OTHER})",
        ),
        (
            {"batch_size": 4},
            64,
            "a step has 1 micro-batch, so 1 of 64 workers computes; gradient_accumulation_steps: 4 with batch_size: 1 "
            f"uses 4 (as many sequences a step, {OTHER})",
        ),
        (
            {"batch_size": 1},
            3,
            "a step has 1 micro-batch, so 1 of 3 workers computes; gradient_accumulation_steps: 3 uses all 3 "
            f"(3 sequences a step in place of 1, {OTHER})",
        ),
        (
            {"batch_size": 16, "device": {"mesh_shape": (1, 8), "enable_ddp": True}, "validation_batch_size": 8},
            2,
            "a step has 1 micro-batch, so 1 of 2 workers computes; gradient_accumulation_steps: 2 with batch_size: 8 "
            f"uses all 2 (as many sequences a step, {OTHER})",
        ),
        (
            {"num_workers": 2, "pipeline": {"blocks_per_stage": (2, 2)}},
            5,
            "a step has 1 micro-batch, so 1 of 2 rows of workers computes; gradient_accumulation_steps: 2 with "
            f"batch_size: 2 uses all 2 (as many sequences a step, {OTHER})",
        ),
        ({"num_workers": 65535}, 65536, "a step has 65535 micro-batches, so 65535 of 65536 workers compute"),
    ],
)  # fmt: skip
def test_idle_workers_and_what_uses_them_are_said(settings: dict[str, Any], workers: int, line: str) -> None:
    assert advise_on_idle_workers(job(**settings), workers) == line


def test_a_regression_has_samples() -> None:
    config = JobConfig.model_validate({"model": LinearRegressionConfig(), "batch_size": 10})
    line = advise_on_idle_workers(config, 5)
    assert line is not None and "as many samples a step, but other samples are drawn" in line


@given(
    st.integers(1, 64), st.integers(1, 12), st.integers(1, 12), st.integers(1, 80), st.sampled_from([1, 2, 8])
)
def test_what_is_advised_is_valid_and_leaves_nothing_to_say(
    batches: int, num_workers: int, accumulation: int, workers: int, chips: int
) -> None:
    device = {"mesh_shape": (1, chips), "enable_ddp": chips > 1}
    sizes = {"batch_size": batches * chips, "validation_batch_size": chips, "device": device}
    before = job(num_workers=num_workers, gradient_accumulation_steps=accumulation, **sizes)
    line = advise_on_idle_workers(before, workers)
    assert (line is None) == (num_workers * accumulation >= workers)
    if line is None:
        return
    advised = dict(re.findall(r"(gradient_accumulation_steps|batch_size): (\d+)", line))
    after = JobConfig.model_validate(
        {**before.model_dump(), **{key: int(value) for key, value in advised.items()}}
    )
    assert after.micro_batches > before.micro_batches
    again = advise_on_idle_workers(after, workers)
    assert again is None or f"uses {after.micro_batches} (as many sequences" in line
    if again is None:
        assert f"uses all {workers} (" in line
