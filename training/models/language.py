"""The common part of language models: token embedding, blocks, and the projection to the vocabulary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

from mesh.device import Mesh
from services.config.models import GPT2Config, LlamaConfig
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
    """A token embedding, blocks, a last norm, and the projection to the vocabulary.

    Args:
        config: config of the model.
        mesh: the mesh to run on.
        tokens: the model's first and last layer.
        norm: the norm before the last layer.
        key_value_heads: number of heads of keys and values in each block.

    Raises:
        Refused: the device library has no kernel for the sequence length.
    """

    def __init__(
        self,
        config: GPT2Config | LlamaConfig,
        mesh: Mesh,
        *,
        tokens: Tokens,
        norm: Norm,
        key_value_heads: int,
    ) -> None:
        check_tokens(config.max_sequence_length)
        self._mesh = mesh
        self.tokens = tokens
        self.norm = norm
        self._key_value_heads = key_value_heads
        self._head_width = config.head_width
        self._blocks = config.num_blocks
        self._recomputes = config.runner_type == "memory_efficient"
        self._masks = Masks(mesh, config.max_sequence_length)

    @abstractmethod
    def _inner_parameters(self) -> Iterator[Parameter]:
        """Yield the parameters between token embedding and last norm, in order of first use."""

    @abstractmethod
    def _enter(self, tape: Tape, ids: Array, position: int) -> Variable:
        """Return the input of the first block, [1, 1, N, width], for ids that begin at `position`."""

    @abstractmethod
    def _runs(self, tape: Tape, mask: Variable, position: int, tokens: int) -> Sequence[RunBlock]:
        """Return functions that run each block, for a pass over `tokens` tokens from `position` on."""

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use; a tied projection is the token embedding and comes once."""
        yield self.tokens.embedding
        yield from self._inner_parameters()
        yield from self.norm.parameters()
        yield from self.tokens.last_parameters()

    def loss(self, tape: Tape, inputs: Array, targets: Array) -> Variable:
        """Return the negative log-likelihood of each target.

        Args:
            tape: the tape of this pass.
            inputs: token ids, uint32 [sequences, tokens]; tokens is the model's `max_sequence_length`.
            targets: the id that follows each input, same shape.

        Returns:
            float32 [1, 1, sequences x tokens of one device, 1].
        """
        return self.tokens.loss(tape, self._hidden(tape, inputs, (), 0), targets)

    def logits(
        self, tape: Tape, ids: Array, row: int, caches: Sequence[ops.KeyValueCache] = (), position: int = 0
    ) -> Variable:
        """Return the logits of the next token, see `TextModel`."""
        hidden = self._hidden(tape, ids, caches, position)
        return self.tokens.logits(tape, ops.take_rows(tape, hidden, row, row + 1))

    def caches(self, window: int) -> tuple[ops.KeyValueCache, ...]:
        """Return empty caches, see `TextModel`."""
        return tuple(
            ops.KeyValueCache(self._mesh, self._key_value_heads, window, self._head_width)
            for _ in range(self._blocks)
        )

    def _hidden(self, tape: Tape, ids: Array, caches: Sequence[ops.KeyValueCache], position: int) -> Variable:
        """Return the projection's input, [1, 1, sequences x tokens of one device, width]."""
        tokens = ids.shape[1]
        mask = self._masks.of_one(position, caches[0].window) if position else self._masks.of(tokens)
        blocks = self._runs(tape, mask, position, tokens)
        x = self._enter(tape, ids, position)
        for index, block in enumerate(blocks):
            past = ops.Past(caches[index], position) if caches else None

            def run(x: Variable, block: RunBlock = block, past: ops.Past | None = past) -> Variable:
                return block(x, past)

            # The backward pass needs the last block's values at once, so recomputing it would only cost time.
            keeps = not self._recomputes or block is blocks[-1]
            x = run(x) if keeps else tape.recompute(run, x)
        return self.norm(tape, x)
