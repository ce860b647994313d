"""Runs a text model token by token; caches keep what it computed for earlier tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import download
from training.autograd.tape import Tape
from training.models.model import (
    TextModel,
)
from training.parameter_placement import TILE


class Decoder:
    """Decoder of one text, which computes the logits of its next token as the text grows.

    The first tokens go through the model at once. Each further token is a pass of one row, whose cost does not depend
    on the number of earlier tokens. When the window is full, the caches are filled again from its last half.

    Args:
        mesh: a mesh of one device.
        model: the model, with weights.
        window: number of tokens that a pass sees, its own among them; a multiple of 32, at most the model's positions.
    """

    def __init__(self, mesh: Mesh, model: TextModel, window: int) -> None:
        self._mesh = mesh
        self._model = model
        self._window = window
        self._caches = model.caches(window)
        self._held = 0  # number of tokens in the caches
        self._read = 0  # number of tokens of the text so far

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """Return the logits of the token after `ids`, [vocabulary].

        Args:
            ids: the text: at least one token in the first call, one more token in each later call.
        """
        if self._held and len(ids) != self._read + 1:
            raise ValueError(f"decode: {len(ids)} tokens given after {self._read}, expected {self._read + 1}")
        self._read = len(ids)
        if self._held == 0:
            return self._begin(ids[-self._window :])
        if self._held == self._window:
            return self._begin(ids[-(self._window // 2) :])
        position = self._held
        self._held += 1
        return self._pass(np.array([[ids[-1]]], np.uint32), 0, position)

    def _begin(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        self._held = len(ids)
        # Rounded up to whole tiles; ids after the last token are masked, and overwritten before they are seen.
        padded = np.zeros((1, -(-len(ids) // TILE) * TILE), np.uint32)
        padded[0, : len(ids)] = ids
        return self._pass(padded, len(ids) - 1, 0)

    def _pass(self, ids: npt.NDArray[np.uint32], row: int, position: int) -> npt.NDArray[np.float32]:
        tape = Tape(self._mesh, recording=False)
        logits = self._model.logits(tape, ids, row, self._caches, position)
        values: npt.NDArray[np.float32] = download(self._mesh, logits.value).reshape(-1)
        return values
