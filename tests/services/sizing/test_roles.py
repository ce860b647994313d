"""Memory of the roles, bytes between them, and checkpoints on disk."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plane.update_rules import build_rule
from services.checkpoints.prune import surplus_steps
from services.config.job import JobConfig
from services.config.job_parts import CheckpointConfig, OptimizerConfig
from services.config.models import LinearRegressionConfig
from services.printable import format_bytes
from services.sizing.disk import estimate_checkpoints
from services.sizing.host_memory import count_state_arrays, estimate_host_memory
from services.sizing.links import estimate_links
from services.tensors.layout import Layout

LAYOUT = Layout.build([("weight", (8, 8), True, "weight", False)])


def job(**settings: Any) -> JobConfig:
    return JobConfig.model_validate({"model": LinearRegressionConfig(), **settings})


@pytest.mark.parametrize(
    "optimizer",
    [
        OptimizerConfig(),
        OptimizerConfig(amsgrad=True),
        OptimizerConfig(type="sgd"),
        OptimizerConfig(type="sgd", momentum=0.9),
        OptimizerConfig(type="noop"),
    ],
)
def test_state_arrays_are_those_of_the_update_rule(optimizer: OptimizerConfig) -> None:
    state = build_rule(optimizer, LAYOUT).state
    large = sum(array.size == LAYOUT.elements for array in state.values())
    assert count_state_arrays(job(optimizer=optimizer)) == large


def test_links_carry_what_the_page_says() -> None:
    """docs/use/sizing.md: 124 M parameters, 4 workers, bf16."""
    config = job(num_workers=4, wire_dtype={"gradients": "bfloat16", "weights": "bfloat16"})
    up, down, to_optimizer, back = estimate_links(config, 124_000_000, workers=4, tiers=3, shards=0)
    assert up.total_bytes == down.total_bytes == 992_000_000
    assert (up.links, down.links, to_optimizer.links, back.links) == (4, 4, 1, 1)
    assert to_optimizer.total_bytes == 496_000_000, "sums are float32"
    assert back.total_bytes == 248_000_000
    assert len(estimate_links(config, 124_000_000, workers=4, tiers=2, shards=0)) == 2
    sharded = estimate_links(config, 124_000_000, workers=4, tiers=2, shards=3)
    assert [each.links for each in sharded] == [12, 12]


def test_more_workers_than_micro_batches_send_nothing() -> None:
    up, down, *_ = estimate_links(job(num_workers=2), 1000, workers=5, tiers=3, shards=0)
    assert (up.total_bytes, down.total_bytes) == (2 * 4000, 5 * 4000)


def test_only_workers_grow_with_the_micro_batches() -> None:
    def memory(**settings: Any) -> dict[str, int]:
        roles = estimate_host_memory(
            job(**settings), 10**9, largest_elements=10**7, workers=1, tiers=3, shards=0
        )
        return {each.role: each.memory_bytes for each in roles}

    few, many = memory(), memory(gradient_accumulation_steps=1024)
    assert (few["aggregator"], few["optimizer"]) == (many["aggregator"], many["optimizer"])
    assert many["worker"] - few["worker"] == 10 * 4 * 10**9, "one sum for each level of the tree"


def test_shards_divide_the_optimizer_s_tensors() -> None:
    whole, shard = (
        next(
            each
            for each in estimate_host_memory(
                job(), 10**9, largest_elements=10**7, workers=2, tiers=2, shards=shards
            )
            if each.role == role
        )
        for shards, role in ((0, "aggregator"), (4, "shard"))
    )
    assert shard.memory_bytes == pytest.approx(whole.memory_bytes / 4, rel=0.02)
    assert shard.checkpoint_bytes == whole.checkpoint_bytes // 4


@given(
    steps=st.integers(1, 60),
    every=st.integers(0, 20),
    keep_last=st.integers(0, 6),
    keep_every=st.integers(0, 30),
)
def test_checkpoints_that_are_kept_are_those_that_pruning_leaves(
    steps: int, every: int, keep_last: int, keep_every: int
) -> None:
    keep = CheckpointConfig(keep_last=keep_last, keep_every=keep_every if keep_last else 0)
    config = job(steps=steps, checkpoint_every=every, checkpoint=keep)
    left: list[int] = []
    written = most = 0
    for step in range(steps + 1):
        if config.plan().checkpoints_at(step):
            left.append(step)
            written, most = written + 1, max(most, len(left))
            surplus = surplus_steps(left, step, keep_last=keep.keep_last, keep_every=keep.keep_every)
            left = [each for each in left if each not in surplus]
    found = estimate_checkpoints(config, 1000)
    assert (found.written, found.kept) == (written, len(left))
    assert found.bytes_each == 3 * 4000
    assert most * found.bytes_each <= found.most_bytes


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (999_960, "1.0 MB"), (12_872_318_208, "12.9 GB")],
)
def test_sizes_have_the_unit_that_suits_them(size: int, shown: str) -> None:
    assert format_bytes(size) == shown
