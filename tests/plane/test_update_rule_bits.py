"""Every clone of the update rules gives the bits of numpy, for any range and any split into decaying parameters."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from native.library import C, Kernels, find_kernels
from plane import update_rules
from plane.update_rules import build_rule
from services.config.job_parts import OptimizerConfig
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from tests.support.numpy_update_rules import NumpyRule

CLONES = pytest.mark.parametrize("kernels", find_kernels(C), ids=lambda kernels: kernels.clone)
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


@CLONES
@settings(deadline=None, max_examples=80)
@given(
    config=CONFIGS,
    entries=ENTRIES,
    edges=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    seed=st.integers(0, 1 << 32),
    special=st.booleans(),
)
def test_every_clone_gives_the_bits_of_numpy(
    kernels: Kernels,
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
    rule, expected = build_rule(config, layout), NumpyRule(config, layout)
    weights, expected_weights = (values(seed, layout.elements, special) for _ in range(2))
    for update in range(3):
        gradient = values(seed + 1 + update, layout.elements, special)
        gradient.flags.writeable = False
        rule.begin(0.01 * (update + 1), clip=0.7)
        with mock.patch.object(update_rules, "KERNELS", kernels):
            rule.update(weights, gradient, start, stop)
        expected.update(expected_weights, gradient, slice(start, stop), 0.01 * (update + 1), 0.7)
    assert comparable_bits(weights) == comparable_bits(expected_weights)
    for name, array in expected.state.items():
        assert comparable_bits(rule.state[name]) == comparable_bits(array), name


def test_ranges_and_arrays_that_do_not_fit_the_layout_are_refused() -> None:
    layout = Layout.build([("a", (9,), True, "a", False)])
    rule, weights = build_rule(OptimizerConfig(), layout), np.zeros(9, np.float32)
    rule.begin(0.1)
    for start, stop in ((-1, 4), (3, 2), (0, 10)):
        with pytest.raises(ValueError, match=rf"elements {start} to {stop}, expected a range of 9"):
            rule.update(weights, weights.copy(), start, stop)
    with pytest.raises(ValueError, match=r"8 elements, expected 9"):
        rule.update(weights, weights[:8], 0, 9)
    with pytest.raises(ValueError, match=r"float64 .* expected contiguous float32"):
        rule.update(weights.astype(np.float64), weights, 0, 9)
