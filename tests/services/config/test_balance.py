"""Balanced splits: no other split has a faster slowest stage, nor then a smaller largest one."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from services.config.balance import balance_blocks, divide_by_cost, divide_evenly
from services.config.models import GPT2Config, LlamaConfig


@st.composite
def models(draw: st.DrawFn) -> GPT2Config | LlamaConfig:
    sizes = {
        "num_blocks": draw(st.integers(4, 9)),
        "num_heads": 4,
        "embedding_dim": draw(st.sampled_from([128, 512])),
        "max_sequence_length": draw(st.sampled_from([32, 4096])),
        "weight_tying": draw(st.booleans()),
    }
    return draw(st.sampled_from([GPT2Config(**sizes), LlamaConfig(**sizes, num_groups=2)]))


def costs(model: GPT2Config | LlamaConfig, vocabulary: int, split: tuple[int, ...]) -> tuple[int, int]:
    """Return the work of the slowest stage and the parameters of the largest one, counted by hand."""
    width, tokens = model.embedding_dim, model.max_sequence_length
    if isinstance(model, GPT2Config):
        block, norm, positions = 12 * width**2 + 13 * width, 2 * width, tokens * width
    else:
        block, norm, positions = (
            int(2.5 * width**2) + 3 * width * model.feed_forward_width + 2 * width,
            width,
            0,
        )
    table = vocabulary * width
    work = [count * (block + 2 * width * tokens) for count in split]
    size = [count * block for count in split]
    work[-1] += table + norm
    size[0] += table + positions
    size[-1] += table + norm
    return max(work), max(size)


@given(models(), st.sampled_from([64, 3000, 30000]), st.integers(1, 4), st.integers(1, 2))
def test_no_other_split_is_better(
    model: GPT2Config | LlamaConfig, vocabulary: int, stages: int, least: int
) -> None:
    if stages * least > model.num_blocks:
        stages = model.num_blocks // least
    found = balance_blocks(model, vocabulary, stages, least)
    assert sum(found) == model.num_blocks and min(found) >= least
    borders = combinations(range(1, model.num_blocks), stages - 1)
    splits = [
        tuple(stop - start for start, stop in pairwise((0, *each, model.num_blocks))) for each in borders
    ]
    best = min(costs(model, vocabulary, each) for each in splits if min(each) >= least)
    assert costs(model, vocabulary, found) == best


def test_even_splits_give_the_remainder_to_the_first() -> None:
    assert divide_evenly(32, 5) == (7, 7, 6, 6, 6)


def test_llama_8b_has_fewer_blocks_beside_its_large_tables() -> None:
    model = LlamaConfig(num_heads=32, num_groups=8, embedding_dim=4096, intermediate_dim=14336, num_blocks=32,
                        max_sequence_length=2048)  # fmt: skip
    assert balance_blocks(model, 128256, 4, 1) == (8, 9, 9, 6)
    assert balance_blocks(model, 32000, 4, 1) == (8, 8, 8, 8)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=9),
    st.integers(1, 4),
    st.integers(1, 2),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
    st.lists(st.integers(1, 9), min_size=4, max_size=4),
)
def test_no_split_by_unequal_costs_is_better(
    blocks: list[int], stages: int, least: int, ends: list[int], most: list[int]
) -> None:
    def cost(stage: int, first: int, stop: int) -> float:
        return inf if stop - first > most[stage] else ends[stage] + sum(blocks[first:stop])

    def largest(split: tuple[int, ...]) -> float:
        stops = [sum(split[: stage + 1]) for stage in range(stages)]
        return max(cost(stage, stop - split[stage], stop) for stage, stop in enumerate(stops))

    found = divide_by_cost(len(blocks), stages, least, cost)
    borders = combinations(range(1, len(blocks)), stages - 1)
    splits = [tuple(stop - start for start, stop in pairwise((0, *each, len(blocks)))) for each in borders]
    possible = [largest(each) for each in splits if min(each) >= least and largest(each) < inf]
    if found is None:
        assert not possible
        return
    assert sum(found) == len(blocks) and len(found) == stages and min(found) >= least
    assert largest(found) == min(possible)


def test_a_thousand_blocks_are_dealt_out_at_once() -> None:
    asked = 0

    def cost(stage: int, first: int, stop: int) -> float:
        nonlocal asked
        asked += 1
        return stop - first

    assert divide_by_cost(1024, 64, 1, cost) == (16,) * 64
    assert asked < 3 * 1024**2  # all of them would be 64 times as many
