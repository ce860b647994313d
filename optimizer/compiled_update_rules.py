"""The update rules of update_rules.py, compiled: one pass over memory for clip, decay, moments and weights.

Import through `services.tensors.kernels.compiler.load`. Ranges are cut where weight decay begins and ends; within a
part the operations are those of the numpy path, in its order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

from services.tensors.kernels.compiler import jit


def _array(dtype: Any, *, readonly: bool = False) -> Any:
    return types.Array(dtype, 1, "C", readonly=readonly, aligned=False)


_float32, _float32_in, _int64_in = (
    _array(types.float32),
    _array(types.float32, readonly=True),
    _array(types.int64, readonly=True),
)
_tuple: Any = types.Tuple


@jit(_tuple((types.int64, types.boolean))(_int64_in, _int64_in, types.int64, types.int64))
def part_of(starts: Any, stops: Any, first: Any, stop: Any) -> Any:
    """Where the part that begins at `first` ends, at `stop` at the latest, and whether it lies in one of the runs."""
    run = np.searchsorted(stops, first, side="right")
    if run == stops.size:
        return stop, False
    if starts[run] <= first:
        return min(stops[run], stop), True
    return min(starts[run], stop), False


@jit(
    types.void(
        *(_float32, _float32_in, _float32, _float32),
        *(types.int64, types.int64, _int64_in, _int64_in),
        *(types.float32,) * 7,
    )
)
def adamw(
    weights: Any,
    gradient: Any,
    mean: Any,
    square: Any,
    start: Any,
    stop: Any,
    decay_starts: Any,
    decay_stops: Any,
    clip: Any,
    blend1: Any,
    keep2: Any,
    blend2: Any,
    rate: Any,
    floor: Any,
    shrink: Any,
) -> None:
    """All arrays [elements] of the layout; runs in order, apart."""
    first = start
    while first < stop:
        part_stop, decays = part_of(decay_starts, decay_stops, first, stop)
        kept = shrink if decays else np.float32(1.0)
        w, g = weights[first:part_stop], gradient[first:part_stop]
        m, v = mean[first:part_stop], square[first:part_stop]
        for i in range(w.size):
            clipped = g[i] * clip
            moment = m[i] + (clipped - m[i]) * blend1
            second = v[i] * keep2 + (clipped * clipped) * blend2
            m[i] = moment
            v[i] = second
            w[i] = w[i] * kept - moment / (np.sqrt(second) + floor) * rate
        first = part_stop


@jit(
    types.void(
        *(_float32, _float32_in, _float32),
        *(types.int64, types.int64, _int64_in, _int64_in),
        *(types.float32,) * 5,
        types.boolean,
    )
)
def sgd(
    weights: Any,
    gradient: Any,
    velocity: Any,
    start: Any,
    stop: Any,
    decay_starts: Any,
    decay_stops: Any,
    clip: Any,
    decay: Any,
    momentum: Any,
    enter: Any,
    rate: Any,
    nesterov: Any,
) -> None:
    """All arrays [elements] of the layout, but `velocity` empty without momentum; runs in order, apart."""
    first = start
    while first < stop:
        part_stop, decays = part_of(decay_starts, decay_stops, first, stop)
        w, g, v = weights[first:part_stop], gradient[first:part_stop], velocity[first:part_stop]
        for i in range(w.size):
            change = g[i] * clip
            if decays:
                change += w[i] * decay
            if momentum != np.float32(0.0):
                moved = v[i] * momentum + change * enter
                v[i] = moved
                change = change + moved * momentum if nesterov else moved
            w[i] -= change * rate
        first = part_stop
