"""Rotary positions: by how much each pair of elements of a head turns from one token to the next."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from services.config.models import RopeScaling
from training import ops
from training.models.model import constant


def compute_frequencies(
    head_width: int, theta: float, scaling: RopeScaling | None
) -> npt.NDArray[np.float64]:
    """Return radians per token, [head width / 2], from 1 down to almost 1 / theta.

    With `scaling`, low frequencies are slowed down as in Llama 3.1.
    """
    plain: npt.NDArray[np.float64] = theta ** (-np.arange(0, head_width, 2) / head_width)
    if scaling is None:
        return plain
    # Turns of a pair in the original context: pairs with few turns are slowed down, those with many are not.
    turns = scaling.original_context_length * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = np.clip((turns - low) / (high - low), 0, 1)
    stretched: npt.NDArray[np.float64] = kept * plain + (1 - kept) * plain / scaling.scaling_factor
    return stretched


class Rotations:
    """Angles of tokens. Those of a training sequence are made once, at first use.

    Args:
        mesh: the mesh to put them on.
        window: number of tokens of a training sequence.
        per_token: the result of `compute_frequencies`.
    """

    def __init__(self, mesh: Mesh, window: int, per_token: npt.NDArray[np.float64]) -> None:
        self._mesh = mesh
        self._window = window
        self._per_token = per_token

    def of(self, position: int, tokens: int) -> ops.Rotation:
        """Return the angles of `tokens` tokens from `position` on."""
        return self._whole if (position, tokens) == (0, self._window) else self._made(position, tokens)

    @cached_property
    def _whole(self) -> ops.Rotation:
        return self._made(0, self._window)

    def _made(self, position: int, tokens: int) -> ops.Rotation:
        half = np.arange(position, position + tokens)[:, None] * self._per_token
        angles = np.concatenate([half, half], axis=1)[None, None]
        cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        return ops.Rotation(
            *(constant(self._mesh, table, self._mesh.dtype) for table in (cosine, sine, -sine))
        )
