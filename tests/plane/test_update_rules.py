"""Update rules follow torch's formulas, and their bits depend on nothing but the values."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.library import C, Kernels, find_kernels
from optimizer.schedules import clip_coefficient, gradient_norm
from plane import update_rules
from plane.update_rules import UpdateRule, build_rule, check_state
from services.config.job_parts import OptimizerConfig
from services.errors import Refused
from services.tensors.kernels import arithmetic
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from tests.support.block_sums import norm_squared_blocks

ADAMW = OptimizerConfig(lr=0.1, beta2=0.99, weight_decay=0.1)
SGD = OptimizerConfig(type="sgd", lr=0.1, weight_decay=0.1)
MOMENTUM = OptimizerConfig(type="sgd", lr=0.1, weight_decay=0.1, momentum=0.9, dampening=0.5)
NESTEROV = OptimizerConfig(type="sgd", lr=0.1, weight_decay=0.1, momentum=0.9, nesterov=True)
AMSGRAD = ADAMW.model_copy(update={"amsgrad": True})
NO_OP = OptimizerConfig(type="noop", lr=0.0, weight_decay=0.0)
ALL = pytest.mark.parametrize("config", [ADAMW, AMSGRAD, SGD, MOMENTUM, NESTEROV], ids=str)

SMALL = Layout.build([("a", (3,), True, "a", False), ("b", (3,), False, "b", False)])
SMALL_WEIGHTS = [1.0, -0.5, 0.25, 2.0, -3.0, 0.125]
SMALL_GRADIENTS = [
    [0.5, -1.0, 0.001, 3.0, -0.25, 0.0],
    [0.25, 1.0, -0.002, 2.0, 0.75, 1e-6],
    [-0.5, 0.125, 0.003, 1.0, 0.5, -1e-5],
]

# Decaying and other entries alternate; none is aligned to a block or a cache line.
LARGE = Layout.build(
    (name, (size,), name.startswith("d"), name, False)
    for name, size in (("d0", 70_001), ("d1", 3), ("x0", 40_000), ("d2", 1), ("x1", 33_333), ("d3", 9_999))
)


def values(seed: int, size: int = LARGE.elements) -> Float32Array:
    return np.random.Generator(np.random.Philox(seed)).standard_normal(size, dtype=np.float32)


def run_small(config: OptimizerConfig, clip_to: float | None = None) -> Float32Array:
    rule, weights = build_rule(config, SMALL), np.array(SMALL_WEIGHTS, np.float32)
    for row in SMALL_GRADIENTS:
        gradient = np.array(row, np.float32)
        rule.begin(config.lr, clip_coefficient(gradient_norm(norm_squared_blocks(gradient)), clip_to))
        rule.update(weights, gradient, 0, 6)
    return weights


def run_large(rule: UpdateRule, weights: Float32Array, steps: range, cuts: list[int] | None = None) -> None:
    edges = [0, *sorted(cuts or []), LARGE.elements]
    for step in steps:
        rule.begin(0.01 * (step + 1), clip=0.7)
        gradient = values(100 + step)
        for start, stop in reversed(list(pairwise(edges))):
            rule.update(weights, gradient, start, stop)


@pytest.mark.parametrize(
    ("config", "clip_to", "expected"),
    [
        (ADAMW, None, [0.7687994, -0.4020528, 0.1465251, 1.7132862, -3.0157061, 0.1092744]),
        (
            ADAMW.model_copy(update={"epsilon": 1e-3}),
            1.0,
            [0.8035632, -0.4345998, 0.2088045, 1.7013292, -3.0337443, 0.1252622],
        ),
        (SGD, None, [0.9465440, -0.4986395, 0.2423747, 1.4, -3.1, 0.1250009]),
        (MOMENTUM, None, [0.8253760, -0.3112049, 0.2394241, 0.9470001, -3.0285001, 0.1250004]),
        (NESTEROV, None, [0.7822111, -0.4179164, 0.2298546, 0.2363002, -3.2122753, 0.1250016]),
    ],
)
def test_three_updates_match_torch(
    config: OptimizerConfig, clip_to: float | None, expected: list[float]
) -> None:
    # The expected weights were computed with torch 2.13, `b` in a parameter group without weight decay.
    np.testing.assert_allclose(run_small(config, clip_to), expected, rtol=3e-7)


def test_adamw_matches_its_formula_in_float64_over_many_updates() -> None:
    config, steps = OptimizerConfig(lr=0.01, weight_decay=0.1), 50
    rule, weights = build_rule(config, SMALL), values(1, 6)
    exact, mean, square = weights.astype(np.float64), np.zeros(6), np.zeros(6)
    decay = np.array([1 - 0.01 * 0.1] * 3 + [1.0] * 3)
    for step in range(1, steps + 1):
        gradient = values(1 + step, 6)
        rule.begin(config.lr)
        rule.update(weights, gradient, 0, 6)
        mean = 0.9 * mean + 0.1 * gradient
        square = 0.999 * square + 0.001 * gradient.astype(np.float64) ** 2
        corrected_mean, corrected_square = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        exact = decay * exact - config.lr * corrected_mean / (np.sqrt(corrected_square) + 1e-8)
    np.testing.assert_allclose(weights, exact, rtol=0, atol=3e-6)


@pytest.mark.parametrize("amsgrad", [False, True])
def test_adamw_with_a_changing_beta1_matches_its_formula_in_float64(amsgrad: bool) -> None:
    config, steps = OptimizerConfig(lr=0.01, weight_decay=0.1, beta2=0.9, amsgrad=amsgrad), 40
    rule, weights = build_rule(config, SMALL), values(1, 6)
    exact, mean, square, largest = weights.astype(np.float64), np.zeros(6), np.zeros(6), np.zeros(6)
    decay = np.array([1 - 0.01 * 0.1] * 3 + [1.0] * 3)
    for step in range(1, steps + 1):
        gradient = values(1 + step, 6) / np.float32(step)  # falling, so that the largest v is an earlier one
        beta1 = 0.85 + 0.1 * step / steps
        rule.begin(config.lr, beta1=beta1)
        rule.update(weights, gradient, 0, 6)
        mean = beta1 * mean + (1 - beta1) * gradient
        square = 0.9 * square + 0.1 * gradient.astype(np.float64) ** 2
        largest = np.maximum(largest, square)
        root = np.sqrt((largest if amsgrad else square) / (1 - 0.9**step))
        exact = decay * exact - config.lr * mean / (1 - beta1**step) / (root + 1e-8)
    np.testing.assert_allclose(weights, exact, rtol=0, atol=3e-6)


def test_no_op_keeps_the_weights_and_counts_its_updates() -> None:
    rule, weights = build_rule(NO_OP, SMALL), np.array(SMALL_WEIGHTS, np.float32)
    for _ in range(3):
        rule.begin(0.1)
        rule.update(weights, np.ones(6, np.float32), 0, 6)
    assert weights.tolist() == SMALL_WEIGHTS
    assert {name: array.tolist() for name, array in rule.state.items()} == {"applied": [3]}


@ALL
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, LARGE.elements), max_size=12))
def test_bits_do_not_depend_on_how_the_layout_is_split(config: OptimizerConfig, cuts: list[int]) -> None:
    whole, cut = build_rule(config, LARGE), build_rule(config, LARGE)
    weights, cut_weights = values(0), values(0)
    run_large(whole, weights, range(3))
    run_large(cut, cut_weights, range(3), cuts)
    assert cut_weights.tobytes() == weights.tobytes()
    assert {name: array.tobytes() for name, array in cut.state.items()} == {
        name: array.tobytes() for name, array in whole.state.items()
    }


@ALL
def test_bits_do_not_depend_on_threads(config: OptimizerConfig) -> None:
    alone, shared = build_rule(config, LARGE), build_rule(config, LARGE)
    weights, shared_weights = values(0), values(0)
    run_large(alone, weights, range(2))
    starts = range(0, LARGE.elements, 10_007)
    with ThreadPoolExecutor(4) as threads:
        for step in range(2):
            shared.begin(0.01 * (step + 1), clip=0.7)
            gradient = values(100 + step)
            ranges = [(start, min(start + 10_007, LARGE.elements)) for start in starts]
            list(threads.map(lambda cut, g=gradient: shared.update(shared_weights, g, *cut), ranges))
    assert shared_weights.tobytes() == weights.tobytes()


GOLDEN = {"adamw": 0xAD19C64B, "sgd": 0x6729D167}


@pytest.mark.parametrize("kernels", find_kernels(C), ids=lambda kernels: kernels.clone)
@pytest.mark.parametrize("rule_type", GOLDEN)
def test_golden_bits(rule_type: str, kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    # A job that resumes under a newer release must keep its bits; they change only with an issue that asks for it.
    for module in (arithmetic, update_rules):
        monkeypatch.setattr(module, "KERNELS", kernels)
    layout = Layout.build([("a", (100_003,), True, "a", False), ("b", (54_321,), False, "b", False)])
    index = np.arange(layout.elements)
    config = OptimizerConfig(type=rule_type, weight_decay=0.1, momentum=0.9, nesterov=True)
    rule, weights = build_rule(config, layout), (index % 1013).astype(np.float32) / np.float32(997)
    for step in range(5):
        gradient = (index * (step + 3) % 757).astype(np.float32) / np.float32(-499)
        clip = 1 / gradient_norm(norm_squared_blocks(gradient))
        rule.begin(0.01 * (step + 1), clip)
        rule.update(weights, gradient, 0, layout.elements)
    assert google_crc32c.value(weights.tobytes()) == GOLDEN[rule_type]


@ALL
def test_only_decaying_entries_decay(config: OptimizerConfig) -> None:
    rule, weights = build_rule(config, LARGE), values(0)
    before = weights.copy()
    rule.begin(0.5)
    rule.update(weights, np.zeros(LARGE.elements, np.float32), 0, LARGE.elements)
    for entry in LARGE.entries:
        part = slice(entry.offset, entry.stop)
        # Nesterov momentum applies the first gradient, which includes the decay, 1 + 0.9 times.
        decay = 0.5 * 0.1 * (1.9 if config.nesterov else 1.0) if entry.decays else 0.0
        factor = np.float32(1 - decay)
        np.testing.assert_allclose(weights[part], before[part] * factor, rtol=2e-7)
        assert (weights[part] == before[part]).all() == (not entry.decays)


@ALL
def test_an_update_changes_only_its_range(config: OptimizerConfig) -> None:
    rule, weights = build_rule(config, LARGE), values(0)
    before = weights.copy()
    rule.begin(0.1)
    rule.update(weights, values(1), 1000, 80_000)
    changed = np.flatnonzero(weights != before)
    assert (changed.min(), changed.max()) == (1000, 79_999)


@ALL
def test_an_update_does_not_change_the_gradient(config: OptimizerConfig) -> None:
    rule, gradient = build_rule(config, LARGE), values(1)
    rule.begin(0.1, clip=0.5)
    rule.update(values(0), gradient, 0, LARGE.elements)
    assert gradient.tobytes() == values(1).tobytes()


@ALL
def test_a_restored_rule_continues_with_the_same_bits(config: OptimizerConfig) -> None:
    straight, weights = build_rule(config, LARGE), values(0)
    run_large(straight, weights, range(4))

    first, resumed_weights = build_rule(config, LARGE), values(0)
    run_large(first, resumed_weights, range(2))
    saved = {name: array.copy() for name, array in first.state.items()}
    second = build_rule(config, LARGE)
    second.restore(saved)
    run_large(second, resumed_weights, range(2, 4))
    assert resumed_weights.tobytes() == weights.tobytes()
    assert saved["applied"].tolist() == [2], "the restored rule must not share the saved arrays"


def test_a_skipped_step_does_not_count_in_the_bias_correction() -> None:
    rule, weights = build_rule(ADAMW, SMALL), np.zeros(6, np.float32)
    rule.begin(0.1)
    rule.update(weights, np.full(6, 3.0, np.float32), 0, 6)
    assert rule.state["applied"].tolist() == [1]
    np.testing.assert_allclose(
        weights, -0.1, rtol=1e-6
    )  # Adam's first step has the size of the learning rate


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({}, "expected applied, exp_avg, exp_avg_sq"),
        ({"applied": np.zeros(1, np.int64)}, "applied, expected applied, exp_avg, exp_avg_sq"),
        (
            {"applied": np.zeros(1, np.int64), "exp_avg": np.zeros(6), "exp_avg_sq": np.zeros(6)},
            r"exp_avg is float64 \[6\], expected float32 \[6\]",
        ),
        (
            {
                "applied": np.zeros(1, np.int64),
                "exp_avg": np.zeros(6, np.float32),
                "exp_avg_sq": np.zeros(5, np.float32),
            },
            r"exp_avg_sq is float32 \[5\], expected float32 \[6\]",
        ),
    ],
)
def test_the_state_of_another_rule_is_refused(state: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(Refused, match=text):
        check_state(ADAMW, SMALL.elements, state)


def test_rules_without_momentum_keep_no_model_sized_state() -> None:
    assert build_rule(SGD, SMALL).state.keys() == {"applied"}
    assert build_rule(MOMENTUM, SMALL).state.keys() == {"applied", "momentum_buffer"}


def test_clip_coefficient_matches_torch() -> None:
    assert clip_coefficient(123.0, None) == 1.0
    assert clip_coefficient(0.5, 1.0) == 1.0
    assert clip_coefficient(4.0, 1.0) == 1.0 / 4.000001
    assert clip_coefficient(0.0, 1.0) == 1.0


@given(st.floats(0, 1e30), st.floats(1e-6, 1e6))
def test_clipping_bounds_the_norm(grad_norm: float, max_norm: float) -> None:
    coefficient = clip_coefficient(grad_norm, max_norm)
    assert 0 <= coefficient <= 1
    assert grad_norm * coefficient <= max_norm * (1 + 1e-12)
    assert math.isfinite(coefficient)
