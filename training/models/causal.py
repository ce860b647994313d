"""Causal masks: which earlier tokens a token may attend to, as numbers that are added to attention scores."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from mesh.device import Mesh
from services.errors import Refused
from training.autograd.variable import Variable
from training.models.model import Array, constant

MASKED = -1e9
"""Summand of the score of a key that a query may not see; well inside bfloat16's range."""


class Masks:
    """Masks with which each token sees itself and earlier tokens. The one for training is made once, at first use.

    Args:
        mesh: the mesh to put them on.
        tokens: number of tokens of a training sequence.
    """

    def __init__(self, mesh: Mesh, tokens: int) -> None:
        self._mesh = mesh
        self._tokens = tokens

    def of(self, tokens: int) -> Variable:
        """Return the mask of a sequence from its first token on, [1, 1, tokens, tokens]."""
        return self._whole if tokens == self._tokens else self._causal(tokens)

    def of_one(self, position: int, window: int) -> Variable:
        """Return the mask of the token at `position` over a cache of `window` tokens, [1, 1, 1, window]."""
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
            f"(the device computes in tiles of 32 x 32); choose {-(-tokens // 32) * 32}"
        )
