"""Sizes of the stages of a pipeline: shares of the whole model's, and what schedules keep in flight."""

from __future__ import annotations

from typing import Any

import pytest

from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import count_parameters
from services.sizing.device_memory import DeviceMemory, estimate_device_memory
from services.sizing.pipeline import (
    count_projection_blocks,
    count_stage_elements,
    count_worker_elements,
    estimate_bubble,
    estimate_stage_links,
    size_stages,
)
from services.sizing.portion import Portion

DATA = DataConfig.model_validate({"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},)})
SIZES: dict[str, Any] = {
    "num_heads": 4,
    "embedding_dim": 256,
    "max_sequence_length": 128,
    "dropout_prob": 0.0,
}
GPT2 = GPT2Config(num_blocks=8, **SIZES)
TIED = GPT2Config(num_blocks=8, weight_tying=True, **SIZES)
LLAMA = LlamaConfig(num_blocks=8, num_groups=2, **SIZES)
VOCABULARY = 5000


def job(
    model: GPT2Config | LlamaConfig, stages: tuple[int, ...], *, d: int = 1, m: int = 8, **settings: Any
) -> JobConfig:
    """Return a job of d pipelines with m micro-batches each."""
    pipeline = {"blocks_per_stage": stages, **settings}
    return JobConfig.model_validate(
        {"model": model, "data": DATA, "num_workers": d * len(stages), "gradient_accumulation_steps": m,
         "pipeline": pipeline}
    )  # fmt: skip


def memory_of(config: JobConfig, portion: Portion | None = None) -> DeviceMemory:
    found = estimate_device_memory(config, VOCABULARY, dtype="bfloat16", banks=12, portion=portion)
    assert found is not None
    return found


@pytest.mark.parametrize("model", [GPT2, TIED, LLAMA], ids=["gpt2", "tied", "llama"])
def test_stages_share_the_parameters_and_one_stage_has_all(model: GPT2Config | LlamaConfig) -> None:
    config = job(model, (3, 3, 2))
    sizes = size_stages(config, VOCABULARY, dtype="bfloat16", banks=12)
    assert count_stage_elements(config, VOCABULARY) == [each.parameters for each in sizes]
    assert sum(each.parameters or 0 for each in sizes) == count_parameters(model, VOCABULARY)
    (alone,) = size_stages(job(model, (8,), m=1), VOCABULARY, dtype="bfloat16", banks=12)
    assert alone.memory == memory_of(config)


def test_a_tied_table_is_held_at_both_ends() -> None:
    tied, plain = (
        size_stages(job(model, (4, 4)), VOCABULARY, dtype="bfloat16", banks=12) for model in (TIED, GPT2)
    )
    assert [each.memory and each.memory.weights_bytes for each in tied] == [
        each.memory and each.memory.weights_bytes for each in plain
    ]
    assert [tied[stage].parameters == plain[stage].parameters for stage in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("settings", "m", "in_flight", "kept_blocks", "kept_losses"),
    [
        ({"schedule": "1f1b"}, 8, [7, 5, 3, 1], [14, 10, 6, 2], [0, 0, 0, 1]),
        ({"schedule": "1f1b", "hide_transfers": False}, 8, [4, 3, 2, 1], [8, 6, 4, 2], [0, 0, 0, 1]),
        ({"schedule": "1f1b"}, 2, [2, 2, 2, 1], [4, 4, 4, 2], [0, 0, 0, 1]),
        ({"schedule": "gpipe"}, 8, [8, 8, 8, 8], [16] * 4, [0, 0, 0, 8]),
        ({"schedule": "interleaved_1f1b", "ranges_per_stage": 2}, 8, [11, 9, 7, 5], [11, 9, 7, 5], [0, 0, 0, 1]),
    ],
)  # fmt: skip
def test_a_stage_keeps_what_its_schedule_has_in_flight(
    settings: dict[str, Any], m: int, in_flight: list[int], kept_blocks: list[int], kept_losses: list[int]
) -> None:
    config = job(LLAMA, (2, 2, 2, 2), m=m, **settings)
    assert config.pipeline is not None
    portions = [Portion.of_stage(config.pipeline, stage, m) for stage in range(4)]
    assert [each.kept_blocks for each in portions] == kept_blocks
    assert [each.kept_losses for each in portions] == kept_losses
    sizes = size_stages(config, VOCABULARY, dtype="bfloat16", banks=12)
    assert [each.in_flight for each in sizes] == in_flight


def test_a_worker_with_all_stages_keeps_what_free_transfers_need() -> None:
    config = job(LLAMA, (2, 2, 2, 2))
    apart, together = (
        size_stages(config, VOCABULARY, dtype="bfloat16", banks=12, worker_stages=count) for count in (1, 4)
    )
    assert [each.in_flight for each in together] == [4, 3, 2, 1]
    assert together[0].memory_bytes < apart[0].memory_bytes


@pytest.mark.parametrize(
    "settings", [{"schedule": "1f1b"}, {"schedule": "interleaved_1f1b", "ranges_per_stage": 2}]
)
def test_memory_depends_on_micro_batches_under_gpipe_alone(settings: dict[str, Any]) -> None:
    few, many = (
        [
            each.memory_bytes
            for each in size_stages(
                job(LLAMA, (4, 4), m=m, **settings), VOCABULARY, dtype="bfloat16", banks=12
            )
        ]
        for m in (32, 65536)
    )
    assert few == many
    gpipe = [
        size_stages(job(LLAMA, (4, 4), m=m, schedule="gpipe"), VOCABULARY, dtype="bfloat16", banks=12)[
            1
        ].memory_bytes
        for m in (8, 32)
    ]
    assert gpipe[1] > 3 * gpipe[0]


def test_the_bubble_is_that_of_even_stages() -> None:
    for settings, v in (
        ({"schedule": "1f1b"}, 1),
        ({"schedule": "interleaved_1f1b", "ranges_per_stage": 2}, 2),
    ):
        pipeline = job(LLAMA, (2, 2, 2, 2), **settings).pipeline
        assert pipeline is not None
        assert estimate_bubble(pipeline, 8) == pytest.approx(3 / (v * 8 + 3))
    uneven = job(LLAMA, (5, 1, 1, 1)).pipeline
    assert uneven is not None and estimate_bubble(uneven, 8) > 0.5


def test_a_balanced_split_has_a_smaller_bubble_when_the_projection_counts() -> None:
    even, balanced = job(LLAMA, (4, 4)), job(LLAMA, (6, 2))
    projection = count_projection_blocks(even, 20000)
    assert projection is not None and 4 < projection < 10 and count_projection_blocks(even, None) is None
    bubbles = []
    for each in (even, balanced):
        assert each.pipeline is not None
        bubbles.append(estimate_bubble(each.pipeline, 64, projection_blocks=projection))
    assert bubbles[1] < bubbles[0]


def test_each_micro_batch_crosses_each_border_both_ways() -> None:
    rows = 4 * 128 * 256 * 2  # sequences, tokens, width, bfloat16
    forward, backward = estimate_stage_links(job(LLAMA, (4, 4), d=3), VOCABULARY, dtype="bfloat16")
    assert forward.total_bytes == backward.total_bytes == 3 * 8 * rows
    assert forward.links == 3
    interleaved = job(LLAMA, (4, 4), d=3, schedule="interleaved_1f1b", ranges_per_stage=2)
    crossing, *_ = estimate_stage_links(interleaved, VOCABULARY, dtype="bfloat16")
    assert (crossing.total_bytes, crossing.links) == (3 * 3 * 8 * rows, 6)
    *_, tied = estimate_stage_links(job(TIED, (4, 4), d=3), VOCABULARY, dtype="bfloat16")
    assert (tied.sender, tied.total_bytes) == ("last stage", 3 * 8 * VOCABULARY * 256 * 2)
    assert estimate_stage_links(job(LLAMA, (8,)), VOCABULARY, dtype="bfloat16") == []


def test_a_worker_has_its_stages_share() -> None:
    sizes = size_stages(job(GPT2, (2, 2, 2, 2)), VOCABULARY, dtype="bfloat16", banks=12)
    parameters = [each.parameters or 0 for each in sizes]
    assert count_worker_elements(parameters, 8) == count_worker_elements(parameters, 4) == max(parameters)
    assert count_worker_elements(parameters, 2) == max(sum(parameters[:2]), sum(parameters[2:]))
    assert count_worker_elements(parameters, 1) == sum(parameters)
