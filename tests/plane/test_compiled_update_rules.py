"""Compiled update rules give the bits of numpy, for any range and any split into decaying parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from plane.update_rules import COMPILED, build_rule
from services.config.job_parts import OptimizerConfig
from services.tensors.kernels import compiler
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

CONFIGS = st.one_of(
    st.builds(
        OptimizerConfig,
        weight_decay=st.sampled_from([0.0, 0.1]),
        epsilon=st.sampled_from([1e-8, 1e-3]),
        amsgrad=st.booleans(),
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
    compiler.load(COMPILED) is None, reason="this environment has no compiled kernels"
)


def values(seed: int, count: int, special: bool) -> Float32Array:
    random = np.random.Generator(np.random.Philox(seed))
    drawn = random.standard_normal(count, np.float32)
    if special:
        where = random.integers(0, count, min(count, 20))
        drawn[where] = SPECIAL[random.integers(0, SPECIAL.size, where.size)]
    return drawn


def comparable_bits(array: NDArray[np.generic]) -> bytes:
    """Return the array's bits with one payload for all NaNs: IEEE 754 does not fix it."""
    return np.where(np.isnan(array), np.float32(np.nan), array).tobytes()


@settings(deadline=None, max_examples=150)
@given(
    config=CONFIGS,
    entries=ENTRIES,
    edges=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 1 << 32),
    special=st.booleans(),
)
def test_compiled_and_numpy_rules_give_the_same_bits(
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

    def run_updates(use_compiled: bool) -> list[bytes]:
        rule = build_rule(config, layout, use_compiled=use_compiled)
        weights = values(seed, layout.elements, special)
        for update in range(3):
            gradient = values(seed + 1 + update, layout.elements, special)
            gradient.flags.writeable = False
            rule.begin(0.01 * (update + 1), clip=0.7)
            rule.update(weights, gradient, start, stop)
        return [comparable_bits(weights), *(comparable_bits(array) for array in rule.state.values())]

    assert run_updates(use_compiled=True) == run_updates(use_compiled=False)
