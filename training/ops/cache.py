"""Keys and values of earlier tokens, for generation: each further token then costs one row of every product."""

from __future__ import annotations

from typing import NamedTuple

from mesh.device import Mesh
from training.autograd.variable import Tensor


class KeyValueCache:
    """Keys and values of one sequence in one attention layer.

    Args:
        mesh: a mesh of one device.
        groups: number of heads of keys and of values.
        window: maximum number of tokens.
        head_width: width of one head.

    Attributes:
        window: maximum number of tokens.
    """

    def __init__(self, mesh: Mesh, groups: int, window: int, head_width: int) -> None:
        tt = mesh.tt
        self.window = window
        self._mesh = mesh
        self._keys, self._values = (
            tt.zeros(
                [1, groups, window, head_width], dtype=mesh.dtype, layout=tt.TILE_LAYOUT, device=mesh.handle
            )
            for _ in range(2)
        )

    def extend(self, k: Tensor, v: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Add keys and values [1, groups, tokens, head width], already rotated, and return those to attend to.

        Args:
            k: keys of the first tokens of the sequence, or of one further token.
            v: values of the same tokens.
            position: position of the first of them in the sequence.

        Returns:
            For the first tokens, `k` and `v`. For a further token, the whole window, to be masked after `position`.

        Raises:
            ValueError: several tokens that are not the first ones, or a full cache; the device library would not
                report it.
        """
        tt = self._mesh.tt
        tokens = k.shape[2]
        if position + tokens > self.window or (tokens > 1 and position > 0):
            raise ValueError(
                f"cache of {self.window} tokens: {tokens} tokens at position {position}, expected position 0 or a "
                "single token"
            )
        if position == 0:
            tt.fill_cache(self._keys, k, 0)
            tt.fill_cache(self._values, v, 0)
            return k, v
        tt.update_cache(self._keys, k, position)
        tt.update_cache(self._values, v, position)
        return self._keys, self._values


class Past(NamedTuple):
    """Earlier tokens that an attention layer sees in one pass.

    Attributes:
        cache: their keys and values.
        position: position of this pass's first token.
    """

    cache: KeyValueCache
    position: int
