"""Token by token through a text model, whose caches hold what it made of the tokens before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import download
from training.autograd import Tape
from training.models import TextModel
from training.parameter_placement import TILE


class Decoder:
    """What a model says of the next token of one text, as the text grows.

    The first tokens go through the model at once. Each further token is a pass of one row, whose cost does not hang on
    how many there were. When the window is full, the caches are made anew of the last half of it.

    Args:
        mesh: of one device.
        model: with weights.
        window: tokens that a pass looks back on, itself among them; a multiple of 32, within the model's positions.
    """

    def __init__(self, mesh: Mesh, model: TextModel, window: int) -> None:
        self._mesh = mesh
        self._model = model
        self._window = window
        self._caches = model.caches(window)
        self._held = 0  # tokens in the caches
        self._read = 0  # tokens of the text so far

    def logits(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """What the model says of the token after `ids`, [vocabulary].

        Args:
            ids: the text: at first at least one token, then always one more than before.
        """
        if self._held and len(ids) != self._read + 1:
            raise ValueError(f"{len(ids)} tokens after {self._read}; a text grows by one token at a time")
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
        # Whole tiles; what stands behind the last token is masked, and overwritten before it is seen.
        padded = np.zeros((1, -(-len(ids) // TILE) * TILE), np.uint32)
        padded[0, : len(ids)] = ids
        return self._pass(padded, len(ids) - 1, 0)

    def _pass(self, ids: npt.NDArray[np.uint32], row: int, position: int) -> npt.NDArray[np.float32]:
        tape = Tape(self._mesh, recording=False)
        said = self._model.logits(tape, ids, row, self._caches, position)
        values: npt.NDArray[np.float32] = download(self._mesh, said.value).reshape(-1)
        return values
