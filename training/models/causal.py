"""Which earlier tokens a token may attend to, as what is added to the scores of attention."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from mesh.device import Mesh
from services.errors import Refused
from training.autograd import Variable
from training.models.model import Array, constant

MASKED = -1e9
"""Added to the score of a key that a query may not see; well within bfloat16's range."""


class Masks:
    """Masks by which each token sees itself and those before it; that of training is made once, at first use.

    Args:
        mesh: to put them on.
        tokens: of a training sequence.
    """

    def __init__(self, mesh: Mesh, tokens: int) -> None:
        self._mesh = mesh
        self._tokens = tokens

    def of(self, tokens: int) -> Variable:
        """[1, 1, tokens, tokens], for a sequence from its first token on."""
        return self._whole if tokens == self._tokens else self._causal(tokens)

    def of_one(self, position: int, window: int) -> Variable:
        """[1, 1, 1, window], for the one token at `position` and the tokens of a cache."""
        keys = np.arange(window).reshape(1, 1, 1, -1)
        return self._constant(np.where(keys <= position, 0, MASKED))

    @cached_property
    def _whole(self) -> Variable:
        return self._causal(self._tokens)

    def _causal(self, tokens: int) -> Variable:
        return self._constant(np.triu(np.full((1, 1, tokens, tokens), MASKED, np.float32), 1))

    def _constant(self, mask: Array) -> Variable:
        return constant(self._mesh, mask.astype(np.float32), self._mesh.dtype)


def check_tokens(tokens: int) -> None:
    """Raise Refused for a sequence length that the device library has no kernel for."""
    if tokens % 32:
        raise Refused(
            f"transformer_config.max_sequence_length: {tokens}, expected a multiple of 32 "
            f"(the device computes in tiles of 32 x 32); take {-(-tokens // 32) * 32}"
        )
