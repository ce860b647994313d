"""Update rules: change the master weights in place by a mean gradient, range by range of the layout.

Formulas, as in `torch.optim` (results differ from torch by rounding only):

    AdamW           Kingma and Ba 2015 (arXiv:1412.6980), with the decoupled weight decay of Loshchilov and Hutter 2019
                    (arXiv:1711.05101) and, if asked for, the AMSGrad of Reddi et al. 2018 (arXiv:1904.09237); see
                    torch.optim.AdamW
    SGD             with momentum, dampening and Nesterov momentum (Sutskever et al. 2013); see torch.optim.SGD
    gradient clip   by the global norm, Pascanu et al. 2013 (arXiv:1211.5063); see torch.nn.utils.clip_grad_norm_

Every rule is element-wise: single IEEE float32 operations in the order written here, by the kernels of native/. Its
scalars are computed in float64 and rounded once. So the weights have the same bits for any split of the layout into
ranges and for any threads. tests/support/numpy_update_rules.py says the same in numpy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from native.library import KERNELS
from plane.huge_page_arrays import allocate_zeros
from services.config.job_parts import OptimizerConfig
from services.errors import Refused
from services.tensors.kernels.arithmetic import Float32Array, address
from services.tensors.layout import Layout


class UpdateRule(ABC):
    """An update rule with its state over a layout.

    `begin` fixes the scalars of an update. Then `update` is called on ranges that together cover the layout once, in
    any order and from any thread.

    Args:
        config: type and settings of the rule.
        layout: layout of the weights; it says which parameters decay.
        names: names of the rule's state arrays, all zero at first.

    Attributes:
        state: arrays that a checkpoint keeps, by torch's names: [elements] float32 each, and `applied`, [1] int64, the
            number of updates begun. They are consistent between an update's last range and the next `begin`.
    """

    state: dict[str, NDArray[np.generic]]

    def __init__(self, config: OptimizerConfig, layout: Layout, names: tuple[str, ...]) -> None:
        runs = _decaying_runs(layout) if config.weight_decay else ([], [])
        self._decay_starts, self._decay_stops = (np.array(each, np.int64) for each in runs)
        self._elements = layout.elements
        self._applied = np.zeros(1, np.int64)
        # Weights and gradient have slots 0 and 1.
        self._arrays = {name: allocate_zeros(layout.elements, slot) for slot, name in enumerate(names, 2)}
        self.state = {**self._arrays, "applied": self._applied}
        self._clip = np.float32(1.0)

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Copy a checkpoint's state, which `check_state` has accepted, into this rule's."""
        for name, array in self.state.items():
            np.copyto(array, state[name])

    def begin(self, learning_rate: float, clip: float = 1.0, *, beta1: float | None = None) -> None:
        """Begin the next update.

        Args:
            learning_rate: learning rate of this update.
            clip: factor on the mean gradient that clips it.
            beta1: decay of the first moment in this update; None for the config's. Rules without moments ignore it.
        """
        self._applied[0] += 1
        self._clip = np.float32(clip)
        self._begin(learning_rate, beta1, int(self._applied[0]))

    def update(self, weights: Float32Array, gradient: Float32Array, start: int, stop: int) -> None:
        """Update a range of the weights by the mean gradient.

        Args:
            weights: all master weights, [elements] float32, changed in place.
            gradient: the whole mean gradient, [elements] float32, not clipped.
            start: first element of the range.
            stop: end of the range, exclusive.
        """
        if not 0 <= start <= stop <= self._elements:
            raise ValueError(f"elements {start} to {stop}, expected a range of {self._elements}")
        n = self._elements
        self._update(
            address(weights, n, written=True),
            address(gradient, n),
            start,
            stop,
            self._decay_starts.ctypes.data,
            self._decay_stops.ctypes.data,
            self._decay_starts.size,
        )

    @abstractmethod
    def _begin(self, learning_rate: float, beta1: float | None, applied: int) -> None:
        """Compute the scalars of update number `applied`, from 1; arguments as for `begin`."""

    @abstractmethod
    def _update(self, weights: int, gradient: int, *place: int) -> None:
        """Call the kernel.

        Args:
            weights: address of all master weights.
            gradient: address of the whole gradient.
            place: range, and addresses and number of the runs that decay.
        """

    def _address(self, name: str) -> int | None:
        """Return the address of an array of the state; None if this rule has none of this name."""
        array = self._arrays.get(name)
        return None if array is None else address(array, self._elements, written=True)


class AdamW(UpdateRule):
    """Adam with decoupled weight decay; its moments are `exp_avg` (m) and `exp_avg_sq` (v).

    With g the clipped gradient and t the number of the update, from 1:

        m = m + (g - m) (1 - beta1)
        v = v beta2 + g^2 (1 - beta2)
        w = w (1 - lr weight_decay) - m / (sqrt(v) + floor) rate
        rate = lr sqrt(1 - beta2^t) / (1 - beta1^t),  floor = epsilon sqrt(1 - beta2^t)

    With `amsgrad` the root is that of `max_exp_avg_sq`, the largest v so far. Where beta1 changes between updates, the
    bias correction takes its current value for all of them, as torch does.
    """

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        names = ("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if config.amsgrad else ()))
        super().__init__(config, layout, names)
        self._weight_decay = config.weight_decay
        self._beta1, self._beta2, self._epsilon = config.beta1, config.beta2, config.epsilon
        self._keep2, self._blend2 = np.float32(config.beta2), np.float32(1 - config.beta2)

    def _begin(self, learning_rate: float, beta1: float | None, applied: int) -> None:
        if beta1 is None:
            beta1 = self._beta1
        # torch divides sqrt(v) by `correction2` and adds epsilon. Multiplying numerator and denominator by
        # `correction2` moves that division from the elements to the scalars.
        correction1, correction2 = 1 - beta1**applied, math.sqrt(1 - self._beta2**applied)
        self._blend1 = np.float32(1 - beta1)
        self._rate = np.float32(learning_rate / correction1 * correction2)
        self._floor = np.float32(self._epsilon * correction2)
        self._shrink = np.float32(1 - learning_rate * self._weight_decay)

    def _update(self, weights: int, gradient: int, *place: int) -> None:
        KERNELS.adamw(
            *(weights, gradient, *map(self._address, ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")), *place),
            *(self._clip, self._blend1, self._keep2, self._blend2, self._rate, self._floor, self._shrink),
        )


class SGD(UpdateRule):
    """Stochastic gradient descent; with momentum its velocity is `momentum_buffer` (b).

    With g the clipped gradient:

        g = g + w weight_decay
        b = b momentum + g (1 - dampening); in the first update b = g
        w = w - lr (g + b momentum if nesterov, else b; without momentum g)
    """

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        names = ("momentum_buffer",) if config.momentum else ()
        super().__init__(config, layout, names)
        self._nesterov, self._dampening = config.nesterov, config.dampening
        self._momentum, self._decay = np.float32(config.momentum), np.float32(config.weight_decay)

    def _begin(self, learning_rate: float, beta1: float | None, applied: int) -> None:
        self._rate = np.float32(learning_rate)
        # As in torch, the first velocity is the gradient, without dampening.
        self._enter = np.float32(1.0 if applied == 1 else 1 - self._dampening)

    def _update(self, weights: int, gradient: int, *place: int) -> None:
        KERNELS.sgd(
            *(weights, gradient, self._address("momentum_buffer"), *place),
            *(self._clip, self._decay, self._momentum, self._enter, self._rate, self._nesterov),
        )


class NoOp(UpdateRule):
    """Rule that leaves the weights as they are: what is measured is all but the update (tt-train's NoOp)."""

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        super().__init__(config, layout, ())

    def _begin(self, learning_rate: float, beta1: float | None, applied: int) -> None: ...

    def _update(self, weights: int, gradient: int, *place: int) -> None: ...


def build_rule(config: OptimizerConfig, layout: Layout) -> UpdateRule:
    """Return the update rule of a job's config, its state all zero; arguments as for `UpdateRule`."""
    rules: dict[str, type[AdamW | SGD | NoOp]] = {"adamw": AdamW, "sgd": SGD, "noop": NoOp}
    return rules[config.type](config, layout)


def state_dtypes(config: OptimizerConfig) -> dict[str, np.dtype[Any]]:
    """Return the dtype of each state array by name: float32 for [elements] of the layout, int64 for a [1] counter."""
    return {name: array.dtype for name, array in build_rule(config, Layout(())).state.items()}


def check_state(config: OptimizerConfig, elements: int, state: Mapping[str, NDArray[np.generic]]) -> None:
    """Check that a checkpoint's state is that of a rule over a layout.

    Raises:
        Refused: it is not.
    """
    dtypes = state_dtypes(config)
    if state.keys() != dtypes.keys():
        found, expected = ", ".join(sorted(state)), ", ".join(sorted(dtypes))
        raise Refused(
            f"optimizer state of the checkpoint: arrays {found}, expected {expected}; resume it with the "
            "optimizer type and momentum that wrote it"
        )
    for name, dtype in dtypes.items():
        given, shape = state[name], (elements if dtype == np.float32 else 1,)
        if (given.shape, given.dtype) != (shape, dtype):
            raise Refused(
                f"optimizer state of the checkpoint: {name} is {given.dtype} {list(given.shape)}, expected "
                f"{dtype} {list(shape)}; resume it with the model that wrote it"
            )


def initial_state(config: OptimizerConfig, layout: Layout) -> dict[str, NDArray[Any]]:
    """Return the state of a rule that has made no update: zeros, in memory only where they are changed."""
    return {
        name: np.zeros(layout.elements if dtype == np.float32 else 1, dtype)
        for name, dtype in state_dtypes(config).items()
    }


def _decaying_runs(layout: Layout) -> tuple[list[int], list[int]]:
    """Return the starts and stops of maximal runs of neighbouring entries that decay."""
    starts: list[int] = []
    stops: list[int] = []
    for entry in layout.entries:
        if not entry.decays:
            continue
        if stops and stops[-1] == entry.offset:
            stops[-1] = entry.stop
        else:
            starts.append(entry.offset)
            stops.append(entry.stop)
    return starts, stops
