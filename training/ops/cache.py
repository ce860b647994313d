"""Keys and values of earlier tokens, so that a further token costs one row of each product. For generation."""

from __future__ import annotations

from typing import NamedTuple

from mesh.device import Mesh
from training.autograd import Tensor


class KeyValueCache:
    """What one attention layer keeps of a sequence.

    Args:
        mesh: of one device.
        groups: heads of keys and of values.
        window: tokens that there is room for.
        head_width: of one head.

    Attributes:
        window: as above.
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
        """Keep keys and values [1, groups, tokens, head width], rotated already, and give those to attend to.

        Args:
            k: of the first tokens of the sequence, or of one further token.
            v: likewise.
            position: of the first of them in the sequence.

        Returns:
            Of the first tokens, themselves; of a further one, those of all the window, to be masked behind `position`.

        Raises:
            ValueError: several tokens that are not the first, or no room; the device library would not say so.
        """
        tt = self._mesh.tt
        tokens = k.shape[2]
        if position + tokens > self.window or (tokens > 1 and position > 0):
            raise ValueError(f"{tokens} tokens from position {position} for a cache of {self.window}")
        if position == 0:
            tt.fill_cache(self._keys, k, 0)
            tt.fill_cache(self._values, v, 0)
            return k, v
        tt.update_cache(self._keys, k, position)
        tt.update_cache(self._values, v, position)
        return self._keys, self._values


class Past(NamedTuple):
    """Of one attention layer in one pass: where earlier keys and values are kept, and where this pass begins."""

    cache: KeyValueCache
    position: int
