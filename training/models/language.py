"""The common part of language models: token embedding, blocks, and the projection to the vocabulary.

A model is built from a range of its blocks. The whole model is the range of all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from mesh.device import Mesh
from services.config.models import GPT2Config, LlamaConfig
from services.pipeline.split import BlockRange
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.models.causal import Masks, check_tokens
from training.models.model import Array
from training.models.tokens import Tokens

RunBlock: TypeAlias = Callable[[Variable, ops.Past | None], Variable]
"""Function that runs a block: maps [1, 1, N, width] to the same shape; `Past` is None at the start of a text."""


class Norm(Protocol):
    """A normalisation of rows, with its parameters."""

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        ...

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """Map [1, 1, N, width] to the same shape."""
        ...


class LanguageModel(ABC):
    """A token embedding, blocks, a last norm, and the projection to the vocabulary, or a range of them.

    Args:
        config: config of the model.
        mesh: the mesh to run on.
        blocks: the blocks that are built. What comes before them is in the first range, what comes after them in the
            last one.
        tokens: the model's first and last layer.
        norm: the norm before the last layer; None if it is in another range.
        key_value_heads: number of heads of keys and values in each block.

    Raises:
        Refused: the device library has no kernel for the sequence length.
    """

    def __init__(
        self,
        config: GPT2Config | LlamaConfig,
        mesh: Mesh,
        blocks: BlockRange,
        *,
        tokens: Tokens,
        norm: Norm | None,
        key_value_heads: int,
    ) -> None:
        check_tokens(config.max_sequence_length)
        self._mesh = mesh
        self.tokens = tokens
        self.norm = norm
        self._key_value_heads = key_value_heads
        self._head_width = config.head_width
        self._range = blocks
        self._window = config.max_sequence_length
        self._width = config.embedding_dim
        self._recomputes = config.runner_type == "memory_efficient"
        self._masks = Masks(mesh, config.max_sequence_length)

    @abstractmethod
    def _inner_parameters(self) -> Iterator[Parameter]:
        """Yield the parameters between token embedding and last norm that this range has, in order of first use."""

    @abstractmethod
    def _enter(self, tape: Tape, ids: Array, position: int) -> Variable:
        """Return the input of the first block, [1, 1, N, width], for ids that begin at `position`."""

    @abstractmethod
    def _runs(self, tape: Tape, mask: Variable, position: int, tokens: int) -> Sequence[RunBlock]:
        """Return functions that run each block of the range, for a pass over `tokens` tokens from `position` on."""

    @property
    def width(self) -> int:
        """Width of the residual stream."""
        return self._width

    @property
    def tied_table(self) -> Parameter | None:
        """The first range's token embedding if the last range has a copy, see `RangeModel`."""
        return self.tokens.embedding if self._range.is_first and self._is_copied else None

    @property
    def tied_copy(self) -> Parameter | None:
        """The last range's copy of the token embedding, see `RangeModel`."""
        return self.tokens.projection if self._range.is_last and self._is_copied else None

    @property
    def _is_copied(self) -> bool:
        """Whether the first and the last range both have the table of a tied model."""
        return self.tokens.is_tied and not self._range.is_whole

    def parameters(self) -> Iterator[Parameter]:
        """Yield the range's parameters in order of first use.

        A tied projection is the token embedding and comes once, in the first range.
        """
        if self._range.is_first:
            yield self.tokens.embedding
        yield from self._inner_parameters()
        if self.norm is not None:
            yield from self.norm.parameters()
        if self._range.is_last:
            yield from self.tokens.last_parameters()

    def run_blocks(self, tape: Tape, entering: Array | Variable) -> Variable:
        """Run the range's blocks in a training pass, see `RangeModel`."""
        return self._through_blocks(tape, entering, self._window, (), 0)

    def leave(self, tape: Tape, x: Variable, targets: Array) -> Variable:
        """Return the losses for the last range's result; see `loss`."""
        return self.tokens.loss(tape, self._normalised(tape, x), targets)

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """Return the negative log-likelihood of each target.

        Args:
            tape: the tape of this pass.
            inputs: token ids, uint32 [sequences, tokens]; tokens is the model's `max_sequence_length`.
            targets: the id that follows each input, same shape.

        Returns:
            float32 [1, 1, sequences x tokens of one device, 1].
        """
        return self.leave(tape, self.run_blocks(tape, inputs), targets)

    def logits(
        self, tape: Tape, ids: Array, row: int, caches: Sequence[ops.KeyValueCache] = (), position: int = 0
    ) -> Variable:
        """Return the logits of the next token, see `TextModel`."""
        x = self._through_blocks(tape, ids, ids.shape[1], caches, position)
        return self.tokens.logits(tape, ops.take_rows(tape, self._normalised(tape, x), row, row + 1))

    def caches(self, window: int) -> tuple[ops.KeyValueCache, ...]:
        """Return empty caches, see `TextModel`."""
        return tuple(
            ops.KeyValueCache(self._mesh, self._key_value_heads, window, self._head_width)
            for _ in range(len(self._range))
        )

    def _through_blocks(
        self,
        tape: Tape,
        entering: Array | Variable,
        tokens: int,
        caches: Sequence[ops.KeyValueCache],
        position: int,
    ) -> Variable:
        """Return the last block's result, [1, 1, sequences x tokens of one device, width]."""
        mask = self._masks.of_one(position, caches[0].window) if position else self._masks.of(tokens)
        blocks = self._runs(tape, mask, position, tokens)
        x = entering if isinstance(entering, Variable) else self._enter(tape, entering, position)
        for index, block in enumerate(blocks):
            past = ops.Past(caches[index], position) if caches else None

            def run(x: Variable, block: RunBlock = block, past: ops.Past | None = past) -> Variable:
                return block(x, past)

            # The backward pass needs the model's last block at once, so recomputing it would only cost time. Ranges
            # before the last one run further micro-batches first, so they recompute every block.
            keeps = not self._recomputes or (self._range.is_last and block is blocks[-1])
            x = run(x) if keeps else tape.recompute(run, x)
        return x

    def _normalised(self, tape: Tape, x: Variable) -> Variable:
        if self.norm is None:
            raise ValueError(
                "model: the last norm is in the last range of blocks, expected a pass that ends before it"
            )
        return self.norm(tape, x)
