"""Splits of a model's blocks over the stages of a pipeline: balanced by estimate, or by any cost of a stage.

The slowest stage sets the pace of a pipeline. So the largest number of operations of a stage is made as small as
possible; the projection to the vocabulary counts for the last stage, an embedding is only looked up. Among the splits
that reach it, the one is taken whose largest stage has the fewest parameters, with the tables of both ends.

`services/sizing/measured_split.py` balances by measured times.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import model_parts


def divide_evenly(blocks: int, stages: int) -> tuple[int, ...]:
    """Return the blocks of each stage, as equal as possible; the earlier stages have the remainder."""
    return tuple(blocks // stages + (stage < blocks % stages) for stage in range(stages))


def count_work(model: GPT2Config | LlamaConfig, vocabulary: int) -> tuple[int, int]:
    """Return the operations of a block, and those of last norm and projection, in units of 6 a token.

    `services/sizing/flops.py` has the formula.
    """
    parts = {part.name: part for part in model_parts(model, vocabulary)}
    attention = 2 * model.num_heads * model.head_width * model.max_sequence_length
    block = parts["blocks"].elements // model.num_blocks + attention
    return block, parts["norm"].elements + vocabulary * model.embedding_dim


def balance_blocks(
    model: GPT2Config | LlamaConfig, vocabulary: int, stages: int, least: int
) -> tuple[int, ...]:
    """Return the blocks of each stage of a balanced split.

    Args:
        model: config of the model.
        vocabulary: number of tokens.
        stages: number of stages.
        least: least number of blocks of a stage; `stages * least` is at most the model's number of blocks.
    """
    parts = {part.name: part for part in model_parts(model, vocabulary)}
    block_work, last_work = count_work(model, vocabulary)
    block_size, first_size = parts["blocks"].elements // model.num_blocks, parts["embeddings"].elements
    # A tied table is on both ends.
    last_size = vocabulary * model.embedding_dim + parts["norm"].elements
    work, size = _at_ends(stages, 0, last_work), _at_ends(stages, first_size, last_size)
    unlimited = [model.num_blocks] * stages
    fastest = _deal_out(model.num_blocks, least, work, block_work, unlimited)
    limit = max(end + count * block_work for end, count in zip(work, fastest, strict=True))
    most = [max(least, (limit - end) // block_work) for end in work]
    return _deal_out(model.num_blocks, least, size, block_size, most)


def divide_by_cost(
    blocks: int, stages: int, least: int, cost: Callable[[int, int, int], float]
) -> tuple[int, ...] | None:
    """Return the blocks of each stage, in order, so that the largest cost of a stage is as small as possible.

    Dynamic programming over the borders of stages. About `blocks` squared costs are asked for.

    Args:
        blocks: number of blocks.
        stages: number of stages.
        least: least number of blocks of a stage.
        cost: cost of a stage, given its index and its blocks from the first one to the one after its last.
            It must not fall when the stage gets another block before its first. Infinite for what is not possible.

    Returns:
        The split; None if none is possible.
    """
    lowest: dict[int, float] = {0: 0.0}  # largest cost of the stages so far, by the block after them
    starts: list[dict[int, int]] = []
    for stage in range(stages):
        before, lowest = lowest, {}
        starts.append({})
        for stop in range(least * (stage + 1), blocks - least * (stages - 1 - stage) + 1):
            for start in range(stop - least, least * stage - 1, -1):
                own = cost(stage, start, stop)
                if own >= lowest.get(stop, inf):
                    break
                largest = max(own, before.get(start, inf))
                if largest < lowest.get(stop, inf):
                    lowest[stop], starts[stage][stop] = largest, start
    if blocks not in lowest:
        return None
    counts, stop = [], blocks
    for each in reversed(starts):
        counts.append(stop - each[stop])
        stop = each[stop]
    return tuple(reversed(counts))


def _at_ends(stages: int, first: int, last: int) -> list[int]:
    costs = [0] * stages
    costs[0] += first
    costs[-1] += last
    return costs


def _deal_out(blocks: int, least: int, ends: list[int], each: int, most: list[int]) -> tuple[int, ...]:
    """Return blocks by stage, each block given to the stage that costs least with it.

    For equal blocks no other way makes the largest cost smaller. Of equal stages the later one gets a block, since
    earlier stages keep more micro-batches' activations.

    Args:
        blocks: number of blocks of all stages.
        least: least number of blocks of a stage.
        ends: cost of each stage without its blocks.
        each: cost of a block.
        most: largest number of blocks of each stage.
    """
    counts = [least] * len(ends)
    for _ in range(blocks - sum(counts)):
        open_stages = [stage for stage in reversed(range(len(ends))) if counts[stage] < most[stage]]
        chosen = min(open_stages, key=lambda stage: ends[stage] + (counts[stage] + 1) * each)
        counts[chosen] += 1
    return tuple(counts)
