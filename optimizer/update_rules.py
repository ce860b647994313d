"""Update rules: how a mean gradient changes the master weights, in place, range by range of the layout.

Every rule is element-wise: single IEEE float32 operations in the order written here, its scalars computed in
float64 and rounded once. So the weights have the same bits however the layout is cut into ranges and whichever
threads update them. The formulas are those of torch's `AdamW` and `SGD`; results differ by rounding only.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from optimizer.huge_page_arrays import zeros
from services.config.job_parts import OptimizerConfig
from services.errors import Refused
from services.tensors.kernels import compiler
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

_BLOCK_ELEMENTS = 32 * 1024
"""Elements updated at a time, so that the passes over a block find it in the cache."""


COMPILED = "optimizer.compiled_update_rules"
"""The module of the compiled update rules."""
_NO_VELOCITY = np.zeros(0, np.float32)


def prepare() -> None:
    """Have the compiled update rules ready, and say in the log which path computes.

    Raises:
        Refused: the environment asks for kernels that can't be had.
    """
    compiler.load(COMPILED)


class UpdateRule(ABC):
    """An update rule with its state over a layout.

    `begin` fixes an update's scalars; then `update` is called on ranges that together cover the layout once, in
    any order and from any thread.

    Attributes:
        state: what a checkpoint keeps: arrays of [elements] float32, and `applied`, [1] int64, the number of
            updates begun. Between an update's last range and the next `begin` they belong together.
    """

    state: dict[str, NDArray[np.generic]]

    def __init__(self, config: OptimizerConfig, layout: Layout, names: tuple[str, ...]) -> None:
        """State arrays of these names, all zero."""
        self._decay_starts, self._decay_stops = _decaying_runs(layout) if config.weight_decay else ([], [])
        self._runs = np.array(self._decay_starts, np.int64), np.array(self._decay_stops, np.int64)
        self._applied = np.zeros(1, np.int64)
        # Weights and gradient have places 0 and 1.
        self._arrays = {name: zeros(layout.elements, place) for place, name in enumerate(names, 2)}
        self.state = {**self._arrays, "applied": self._applied}
        self._clip = np.float32(1.0)

    def restore(self, state: Mapping[str, NDArray[np.generic]]) -> None:
        """Continue from a checkpoint's state, which is copied.

        Raises:
            Refused: it isn't the state of this rule over this layout.
        """
        if state.keys() != self.state.keys():
            held, expected = ", ".join(sorted(state)), ", ".join(sorted(self.state))
            raise Refused(f"optimizer state: holds {held}; expected {expected}, as this job's optimizer has")
        for name, array in self.state.items():
            given = state[name]
            if (given.shape, given.dtype) != (array.shape, array.dtype):
                raise Refused(
                    f"optimizer state: {name} is {given.dtype} {list(given.shape)},"
                    f" expected {array.dtype} {list(array.shape)}"
                )
        for name, array in self.state.items():
            np.copyto(array, state[name])

    def begin(self, learning_rate: float, clip: float = 1.0) -> None:
        """Begin the next update: the gradient will be multiplied by `clip`, see `clip_coefficient`."""
        self._applied[0] += 1
        self._clip = np.float32(clip)
        self._begin(learning_rate, int(self._applied[0]))

    def update(self, weights: Float32Array, gradient: Float32Array, start: int, stop: int) -> None:
        """Update the weights from `start` to before `stop` by the mean gradient, both [elements] float32."""
        compiled = compiler.load(COMPILED)
        if compiled is not None:
            self._update_range(compiled, weights, gradient, start, stop)
            return
        scaled = np.empty(min(_BLOCK_ELEMENTS, stop - start), np.float32)
        scratch = np.empty_like(scaled)
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(start, stop, _BLOCK_ELEMENTS):
                block = slice(first, min(first + _BLOCK_ELEMENTS, stop))
                size = block.stop - first
                clipped = np.multiply(gradient[block], self._clip, out=scaled[:size])
                self._update_block(weights, clipped, block, scratch[:size])

    @abstractmethod
    def _begin(self, learning_rate: float, applied: int) -> None:
        """Compute the scalars of update number `applied`, counted from 1."""

    @abstractmethod
    def _update_range(
        self, compiled: ModuleType, weights: Float32Array, gradient: Float32Array, start: int, stop: int
    ) -> None:
        """What `update` says, by the compiled kernels."""

    @abstractmethod
    def _update_block(
        self, weights: Float32Array, gradient: Float32Array, block: slice, scratch: Float32Array
    ) -> None:
        """Update `weights[block]`; `gradient` is the clipped gradient of the block and may be overwritten."""

    def _decaying(self, block: slice) -> Iterator[slice]:
        """The parts of the block that weight decay applies to, as slices of the layout."""
        run = max(bisect_right(self._decay_starts, block.start) - 1, 0)
        while run < len(self._decay_starts) and self._decay_starts[run] < block.stop:
            start, stop = max(self._decay_starts[run], block.start), min(self._decay_stops[run], block.stop)
            if start < stop:
                yield slice(start, stop)
            run += 1


class AdamW(UpdateRule):
    """Adam with decoupled weight decay; `exp_avg` and `exp_avg_sq` are the moments, by torch's names."""

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        super().__init__(config, layout, ("exp_avg", "exp_avg_sq"))
        self._weight_decay = config.weight_decay
        self._beta1, self._beta2, self._epsilon = config.beta1, config.beta2, config.epsilon
        self._blend1 = np.float32(1 - config.beta1)
        self._keep2, self._blend2 = np.float32(config.beta2), np.float32(1 - config.beta2)

    def _begin(self, learning_rate: float, applied: int) -> None:
        # torch divides the root of the second moment by `correction2`, then adds epsilon. With numerator and
        # denominator multiplied by `correction2`, that division moves from the elements to the scalars.
        correction1, correction2 = 1 - self._beta1**applied, math.sqrt(1 - self._beta2**applied)
        self._rate = np.float32(learning_rate / correction1 * correction2)
        self._floor = np.float32(self._epsilon * correction2)
        self._shrink = np.float32(1 - learning_rate * self._weight_decay)

    def _update_range(
        self, compiled: ModuleType, weights: Float32Array, gradient: Float32Array, start: int, stop: int
    ) -> None:
        compiled.adamw(
            *(
                weights,
                gradient,
                self._arrays["exp_avg"],
                self._arrays["exp_avg_sq"],
                start,
                stop,
                *self._runs,
            ),
            *(self._clip, self._blend1, self._keep2, self._blend2, self._rate, self._floor, self._shrink),
        )

    def _update_block(
        self, weights: Float32Array, gradient: Float32Array, block: slice, scratch: Float32Array
    ) -> None:
        for part in self._decaying(block):
            np.multiply(weights[part], self._shrink, out=weights[part])
        mean, square = self._arrays["exp_avg"][block], self._arrays["exp_avg_sq"][block]
        np.subtract(gradient, mean, out=scratch)
        np.multiply(scratch, self._blend1, out=scratch)
        np.add(mean, scratch, out=mean)
        np.multiply(gradient, gradient, out=gradient)
        np.multiply(gradient, self._blend2, out=gradient)
        np.multiply(square, self._keep2, out=square)
        np.add(square, gradient, out=square)
        np.sqrt(square, out=scratch)
        np.add(scratch, self._floor, out=scratch)
        np.divide(mean, scratch, out=scratch)
        np.multiply(scratch, self._rate, out=scratch)
        np.subtract(weights[block], scratch, out=weights[block])


class SGD(UpdateRule):
    """Stochastic gradient descent; with momentum, `momentum_buffer` is the velocity, by torch's name."""

    def __init__(self, config: OptimizerConfig, layout: Layout) -> None:
        super().__init__(config, layout, ("momentum_buffer",) if config.momentum else ())
        self._nesterov, self._dampening = config.nesterov, config.dampening
        self._momentum, self._decay = np.float32(config.momentum), np.float32(config.weight_decay)

    def _begin(self, learning_rate: float, applied: int) -> None:
        self._rate = np.float32(learning_rate)
        # The first velocity is the gradient, whatever the dampening.
        self._enter = np.float32(1.0 if applied == 1 else 1 - self._dampening)

    def _update_range(
        self, compiled: ModuleType, weights: Float32Array, gradient: Float32Array, start: int, stop: int
    ) -> None:
        compiled.sgd(
            *(weights, gradient, self._arrays.get("momentum_buffer", _NO_VELOCITY), start, stop, *self._runs),
            *(self._clip, self._decay, self._momentum, self._enter, self._rate, self._nesterov),
        )

    def _update_block(
        self, weights: Float32Array, gradient: Float32Array, block: slice, scratch: Float32Array
    ) -> None:
        for part in self._decaying(block):
            decay = np.multiply(weights[part], self._decay, out=scratch[: part.stop - part.start])
            local = slice(part.start - block.start, part.stop - block.start)
            np.add(gradient[local], decay, out=gradient[local])
        if self._momentum:
            velocity = self._arrays["momentum_buffer"][block]
            np.multiply(velocity, self._momentum, out=velocity)
            np.multiply(gradient, self._enter, out=scratch)
            np.add(velocity, scratch, out=velocity)
            if self._nesterov:
                np.multiply(velocity, self._momentum, out=scratch)
                np.add(gradient, scratch, out=gradient)
            else:
                gradient = velocity
        np.multiply(gradient, self._rate, out=scratch)
        np.subtract(weights[block], scratch, out=weights[block])


def build_rule(config: OptimizerConfig, layout: Layout) -> UpdateRule:
    """The rule that a job asks for, its state all zero."""
    rules: dict[str, type[AdamW | SGD]] = {"adamw": AdamW, "sgd": SGD}
    return rules[config.type](config, layout)


def state_kinds(config: OptimizerConfig) -> dict[str, np.dtype[Any]]:
    """What a job's rule keeps, by name: float32 over the layout, or int64 for a counter."""
    return {name: array.dtype for name, array in build_rule(config, Layout(())).state.items()}


def clip_coefficient(norm: float, max_norm: float | None) -> float:
    """What the mean gradient is multiplied by to keep its global norm within `max_norm`, as torch clips it."""
    return 1.0 if max_norm is None else min(1.0, max_norm / (norm + 1e-6))


def _decaying_runs(layout: Layout) -> tuple[list[int], list[int]]:
    """Starts and stops of the runs of neighbouring entries that decay."""
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
