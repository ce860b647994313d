"""Compiled update rules have the bits of the numpy path, wherever ranges and runs that decay begin and end."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from optimizer import update_rules as rules
from optimizer.update_rules import build_rule
from services.config.job_parts import OptimizerConfig
from services.tensors.kernels import compiler
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

CONFIGS = st.one_of(
    st.builds(
        OptimizerConfig, weight_decay=st.sampled_from([0.0, 0.1]), epsilon=st.sampled_from([1e-8, 1e-3])
    ),
    st.builds(
        OptimizerConfig,
        type=st.just("sgd"),
        weight_decay=st.sampled_from([0.0, 0.1]),
        momentum=st.sampled_from([0.0, 0.9]),
        dampening=st.sampled_from([0.0, 0.5]),
    ),
    st.builds(
        OptimizerConfig,
        type=st.just("sgd"),
        weight_decay=st.sampled_from([0.0, 0.1]),
        momentum=st.just(0.9),
        nesterov=st.just(True),
    ),
)
ENTRIES = st.lists(
    st.tuples(st.integers(1, 90) | st.sampled_from([1, 16, 33_000]), st.booleans()), min_size=1, max_size=8
)
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-39, 3e38, 1e-20], np.float32)

pytestmark = pytest.mark.skipif(
    compiler.load(rules.COMPILED) is None, reason="no compiled kernels here: numpy computes"
)


def values(seed: int, count: int, special: bool) -> Float32Array:
    random = np.random.Generator(np.random.Philox(seed))
    drawn = random.standard_normal(count, np.float32)
    if special:
        where = random.integers(0, count, min(count, 20))
        drawn[where] = SPECIAL[random.integers(0, SPECIAL.size, where.size)]
    return drawn


def numbers(array: NDArray[np.generic]) -> bytes:
    """The bits, but of a NaN only that it is one: IEEE leaves its payload open."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


@settings(deadline=None, max_examples=150)
@given(
    config=CONFIGS,
    entries=ENTRIES,
    edges=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 1 << 32),
    special=st.booleans(),
)
def test_weights_and_state_are_those_of_numpy(
    config: OptimizerConfig,
    entries: list[tuple[int, bool]],
    edges: tuple[float, float],
    seed: int,
    special: bool,
) -> None:
    layout = Layout.build(
        (str(index), (size,), decays, str(index), False) for index, (size, decays) in enumerate(entries)
    )
    start, stop = sorted(round(edge * layout.elements) for edge in edges)

    def updated() -> list[bytes]:
        rule, weights = build_rule(config, layout), values(seed, layout.elements, special)
        for update in range(3):
            gradient = values(seed + 1 + update, layout.elements, special)
            gradient.flags.writeable = False
            rule.begin(0.01 * (update + 1), clip=0.7)
            rule.update(weights, gradient, start, stop)
        return [numbers(weights), *(numbers(array) for array in rule.state.values())]

    compiled = updated()
    with mock.patch.dict(compiler._loaded, {rules.COMPILED: None}):
        assert updated() == compiled
