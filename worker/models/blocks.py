"""The residual stream through the blocks of a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from worker import ops
from worker.autograd import Tape, Variable

RunBlock: TypeAlias = Callable[[Variable, ops.Past | None], Variable]
"""One block on the tape of a pass: from [1, 1, N, width], and the tokens before if there are any, to the same."""


def through_blocks(
    tape: Tape,
    x: Variable,
    blocks: Sequence[RunBlock],
    *,
    recompute: bool,
    caches: Sequence[ops.KeyValueCache],
    position: int,
) -> Variable:
    """[1, 1, N, width] to the same.

    Args:
        tape: of this pass.
        x: the residual stream.
        blocks: in order.
        recompute: keep a block's input alone, and compute the block again in the backward pass.
        caches: of the tokens before, one a block; none in training.
        position: of the first token of this pass, for the caches.
    """
    for index, block in enumerate(blocks):
        past = ops.Past(caches[index], position) if caches else None

        def run(x: Variable, block: RunBlock = block, past: ops.Past | None = past) -> Variable:
            return block(x, past)

        # What the last block computes is wanted again at once.
        keeps = not recompute or block is blocks[-1]
        x = run(x) if keeps else tape.recompute(run, x)
    return x
