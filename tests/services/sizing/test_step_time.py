"""Times of steps and jobs that can be computed by hand, and how they change with cluster and links."""

from __future__ import annotations

from typing import Any

import pytest

from services.config.job import JobConfig
from services.config.job_parts import DataConfig
from services.config.models import GPT2Config, LinearRegressionConfig
from services.config.parameters import count_parameters
from services.sizing.flops import count_flops_per_token
from services.sizing.measured_split import BlockTimes, PassTime
from services.sizing.step_time import (
    DISK_BYTES_PER_SECOND,
    LINK_SHARE,
    JobTime,
    Sharing,
    StepTime,
    estimate_block_times,
    estimate_job_time,
    estimate_step_time,
)

DATA = DataConfig.model_validate(
    {"files": ({"path": "builtin:python-reference", "sha256": "0" * 64},), "vocab_size": 500}
)
GPT = GPT2Config(num_blocks=8, embedding_dim=512, num_heads=8, max_sequence_length=128, dropout_prob=0.0)
TIMES = BlockTimes((PassTime(0.1, 0.2),) * 8, PassTime(0.0, 0.0))
FAST = 1e15
ALONE = Sharing(1, 1, 1)


def job(**settings: Any) -> JobConfig:
    return JobConfig.model_validate({"model": GPT, "data": DATA, **settings})


def step(config: JobConfig, sharing: Sharing = ALONE, **cluster: Any) -> StepTime:
    cluster = {"link_bits": FAST, "workers": 1, "tiers": 2, "shards": 0, **cluster}
    return estimate_step_time(config, TIMES, sharing, **cluster)


def test_blocks_take_their_operations_over_the_speed() -> None:
    config = job(batch_size=4)
    flops = count_flops_per_token(GPT, 500)
    assert flops is not None
    times = estimate_block_times(config, 1e9)
    assert times is not None and len(times.blocks) == 8
    assert sum(each.seconds for each in times.blocks) == pytest.approx(flops * 4 * 128 / 1e9)
    assert times.blocks[-1].seconds > times.blocks[0].seconds, "the last block has the projection"
    assert all(each.backward_seconds == 2 * each.forward_seconds for each in times.blocks)
    assert estimate_block_times(JobConfig(model=LinearRegressionConfig()), 1e9) is None


def test_without_links_a_step_is_its_passes_and_the_update() -> None:
    one, four = step(job()), step(job(), Sharing(4, 1, 1))
    assert one.computing_seconds == pytest.approx(2.4) and four.computing_seconds == pytest.approx(9.6)
    assert one.weights_exposed_seconds == pytest.approx(0, abs=1e-6)
    assert one.gradients_exposed_seconds == pytest.approx(0, abs=1e-6)
    assert 2.4 < one.step_seconds < 2.6


def test_transfers_are_the_bytes_over_the_busiest_link() -> None:
    elements = count_parameters(GPT, 500)
    assert elements is not None
    second = 8 * elements / (LINK_SHARE * 1e9)
    wire = {"gradients": "bf16", "weights": "bf16"}
    four = {"link_bits": 1e9, "workers": 4}
    full = step(job(), Sharing(1, 4, 4), **four)
    assert (full.weights_seconds, full.gradients_seconds) == pytest.approx((16 * second, 16 * second))
    half = step(job(wire_dtype=wire), Sharing(1, 4, 4), **four)
    assert (half.weights_seconds, half.gradients_seconds) == pytest.approx((8 * second, 8 * second))
    one = step(job(wire_dtype=wire), ALONE, **four)
    assert one.gradients_seconds == pytest.approx(2 * second), "idle workers send no gradients"
    assert one.weights_seconds == pytest.approx(8 * second), "and receive weights"
    through = step(job(wire_dtype=wire), link_bits=1e9, tiers=3)
    assert through.gradients_seconds == pytest.approx(4 * second), "the sum goes on in float32"
    sharded = step(job(), Sharing(1, 4, 4), shards=4, **four)
    assert sharded.weights_seconds == pytest.approx(4 * second)


def test_passes_hide_what_they_can() -> None:
    mixed = step(job(), link_bits=1e9)
    whole = mixed.weights_seconds
    assert 0 < mixed.weights_exposed_seconds < whole and 0 < mixed.gradients_exposed_seconds < whole
    slow = step(job(), link_bits=1e7)
    assert slow.weights_exposed_seconds > 0.95 * slow.weights_seconds
    assert slow.step_seconds > 0.95 * 2 * slow.weights_seconds
    assert step(job(), Sharing(4, 1, 1), link_bits=1e9).weights_exposed_seconds == pytest.approx(
        mixed.weights_exposed_seconds
    ), "only the first micro-batch waits for weights"


def test_a_pipeline_computes_in_its_schedule() -> None:
    config = job(num_workers=4, pipeline={"blocks_per_stage": (2, 2, 2, 2)}, gradient_accumulation_steps=8)
    computing = step(config, Sharing(8, 1, 1), workers=4).computing_seconds
    assert computing == pytest.approx((8 + 3) * 0.6, rel=0.01), (
        "8 micro-batches, and 3 until the stages are full"
    )
    slow = step(config, Sharing(8, 1, 1), workers=4, link_bits=1e7).computing_seconds
    assert slow > computing


LONG = job(steps=100, evaluate_every=30, batch_size=4, validation_batch_size=8)
PASSES_SECONDS = 3 * 0.8 * 2
"""Passes of an evaluation of 5 batches by 2 workers, with twice the sequences of a micro-batch."""


def job_time(one: StepTime, *, link_bits: float, batches: int | None = 5, shards: int = 0) -> JobTime:
    """Return the time of the job above."""
    return estimate_job_time(
        LONG, TIMES, one, link_bits=link_bits, workers=2, shards=shards, evaluation_batches=batches
    )


def test_a_job_has_a_start_steps_evaluations_and_an_end() -> None:
    one = step(LONG, link_bits=1e9)
    found = job_time(one, link_bits=1e9)
    initial = LONG.parameters.number * 32 / (LINK_SHARE * 1e9)
    hidden = one.weights_seconds - one.weights_exposed_seconds
    assert found.start_seconds == pytest.approx(initial + found.checkpoint_seconds + hidden)
    assert found.steps_seconds == pytest.approx(100 * one.step_seconds)
    assert found.evaluations == 4
    assert found.evaluation_seconds == pytest.approx(PASSES_SECONDS + hidden), (
        "the step after it waits no more"
    )
    assert found.end_seconds == pytest.approx(PASSES_SECONDS + one.weights_seconds)
    assert found.job_seconds == pytest.approx(
        found.start_seconds + found.steps_seconds + 3 * found.evaluation_seconds + found.end_seconds
    )


def test_an_evaluation_of_unknown_length_takes_no_time_of_the_job() -> None:
    one = step(LONG)
    found = job_time(one, link_bits=FAST, batches=None)
    assert found.evaluation_seconds is None
    assert found.end_seconds == found.checkpoint_seconds
    assert found.job_seconds == pytest.approx(found.start_seconds + found.steps_seconds + found.end_seconds)


def test_a_checkpoint_of_shards_is_collected_over_the_link_of_the_aggregator() -> None:
    one = step(LONG, link_bits=1e8, shards=2)
    alone, sharded = (job_time(one, link_bits=1e8, shards=shards) for shards in (0, 2))
    written = alone.checkpoint_seconds * DISK_BYTES_PER_SECOND
    assert sharded.checkpoint_seconds - alone.checkpoint_seconds == pytest.approx(
        8 * written / (LINK_SHARE * 1e8)
    )
    assert sharded.end_seconds == sharded.checkpoint_seconds > alone.end_seconds, "the later of both ends it"


def test_the_largest_models_take_no_longer_to_time() -> None:
    large = GPT2Config(num_blocks=126, embedding_dim=16384, num_heads=128, max_sequence_length=1024)
    config = job(model=large)
    times = BlockTimes((PassTime(0.1, 0.2),) * 126, PassTime(0.0, 0.0))
    found = estimate_step_time(config, times, ALONE, link_bits=1e10, workers=1, tiers=2, shards=0)
    assert found.weights_seconds == pytest.approx(config.parameters.number * 32 / (LINK_SHARE * 1e10))
