"""The update rules of update_rules.py, compiled by numba: one pass over memory for clip, decay, moments and weights.

Import it through `services.tensors.kernels.compiler.load`. A range is cut where weight decay begins and ends. Within a
piece the operations are those of the numpy path, in its order, so that both give the same bits.
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
def decay_piece(starts: Any, stops: Any, first: Any, stop: Any) -> Any:
    """Return the end of the longest piece from `first` that decays throughout or not at all, and whether it decays.

    Args:
        starts: first elements of the decaying runs, [runs] int64, ascending.
        stops: ends of the decaying runs, exclusive, [runs] int64, ascending.
        first: first element of the piece.
        stop: upper bound of the piece's end, exclusive.
    """
    run = np.searchsorted(stops, first, side="right")
    if run == stops.size:
        return stop, False
    if starts[run] <= first:
        return min(stops[run], stop), True
    return min(starts[run], stop), False


@jit(
    types.void(
        *(_float32, _float32_in, _float32, _float32, _float32),
        *(types.int64, types.int64, _int64_in, _int64_in),
        *(types.float32,) * 7,
    )
)
def adamw(
    weights: Any,
    gradient: Any,
    mean: Any,
    square: Any,
    largest: Any,
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
    """Update `weights[start:stop]` and both moments by AdamW, see `update_rules.AdamW`.

    Args:
        weights: master weights, [elements] float32, changed in place.
        gradient: mean gradient, [elements] float32.
        mean: first moment m, [elements] float32, changed in place.
        square: second moment v, [elements] float32, changed in place.
        largest: largest v so far, [elements] float32, changed in place; [0] without AMSGrad.
        start: first element of the range.
        stop: end of the range, exclusive.
        decay_starts: first elements of the decaying runs, [runs] int64, ascending.
        decay_stops: ends of the decaying runs, exclusive, [runs] int64, ascending.
        clip: factor on the gradient.
        blend1: 1 - beta1.
        keep2: beta2.
        blend2: 1 - beta2.
        rate: learning rate with both bias corrections.
        floor: epsilon with the bias correction of the second moment.
        shrink: 1 - learning rate * weight decay.
    """
    amsgrad = largest.size > 0
    first = start
    while first < stop:
        piece_stop, decays = decay_piece(decay_starts, decay_stops, first, stop)
        kept = shrink if decays else np.float32(1.0)
        w, g = weights[first:piece_stop], gradient[first:piece_stop]
        m, v, top = mean[first:piece_stop], square[first:piece_stop], largest[first:piece_stop]
        for i in range(w.size):
            clipped = g[i] * clip
            moment = m[i] + (clipped - m[i]) * blend1
            second = v[i] * keep2 + (clipped * clipped) * blend2
            m[i] = moment
            v[i] = second
            if amsgrad:
                if not (
                    top[i] >= second or top[i] != top[i]
                ):  # as numpy's maximum, NaN counts as the largest
                    top[i] = second
                second = top[i]
            w[i] = w[i] * kept - moment / (np.sqrt(second) + floor) * rate
        first = piece_stop


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
    """Update `weights[start:stop]` and the velocity by SGD, see `update_rules.SGD`.

    Args:
        weights: master weights, [elements] float32, changed in place.
        gradient: mean gradient, [elements] float32.
        velocity: velocity b, [elements] float32, changed in place; [0] without momentum.
        start: first element of the range.
        stop: end of the range, exclusive.
        decay_starts: first elements of the decaying runs, [runs] int64, ascending.
        decay_stops: ends of the decaying runs, exclusive, [runs] int64, ascending.
        clip: factor on the gradient.
        decay: weight decay.
        momentum: momentum; 0 for none.
        enter: factor on the gradient that enters the velocity.
        rate: learning rate.
        nesterov: whether to use Nesterov momentum.
    """
    first = start
    while first < stop:
        piece_stop, decays = decay_piece(decay_starts, decay_stops, first, stop)
        w, g, v = weights[first:piece_stop], gradient[first:piece_stop], velocity[first:piece_stop]
        for i in range(w.size):
            change = g[i] * clip
            if decays:
                change += w[i] * decay
            if momentum != np.float32(0.0):
                moved = v[i] * momentum + change * enter
                v[i] = moved
                change = change + moved * momentum if nesterov else moved
            w[i] -= change * rate
        first = piece_stop
