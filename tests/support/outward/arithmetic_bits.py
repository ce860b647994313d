"""Bits of the kernels, update rules and schedules."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from optimizer.schedules import clip_coefficient, gradient_norm, learning_rate
from plane.update_rules import build_rule
from services.config.job_parts import OptimizerConfig
from services.protocol.plan import Schedule
from services.tensors.kernels import arithmetic
from services.tensors.reduction_tree import Node, children
from tests.support.block_sums import norm_squared_blocks
from tests.support.outward.common import (
    LAYOUT,
    RULES,
    digest,
    draw_numbers,
)


def describe_arithmetic() -> dict[str, Any]:
    found: dict[str, Any] = {}
    left, right = draw_numbers(200_003, 11), draw_numbers(200_003, 12)
    total = left.copy()
    arithmetic.accumulate(total, right)
    found["accumulate"] = digest(total)
    arithmetic.add(left, right, total)
    found["add"] = digest(total)
    arithmetic.scale_with_norm(left, 1 / 3, total)
    found["scale"] = digest(total)
    sums = norm_squared_blocks(left)
    found["norm"] = {"blocks": digest(sums), "norm": gradient_norm(sums).hex()}
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 65504, 65520, 3.4e38], np.float32)
    values = np.concatenate([left * np.float32(70_000), left * np.float32(1e-6), special])
    for dtype in ("fp32", "bf16", "fp16"):
        payload = arithmetic.to_wire(values, dtype)
        total = right.copy()
        arithmetic.accumulate_wire(total, arithmetic.to_wire(left, dtype).tobytes(), dtype)
        found[dtype] = {"to wire": digest(payload), "accumulate wire": digest(total)}
        if dtype != "fp32":
            every = np.arange(1 << 16, dtype="<u2").tobytes()
            found[dtype]["from wire"] = digest(arithmetic.from_wire(every, dtype))
    for (name, rule), decay in product(RULES.items(), (0.0, 0.1)):
        found[f"{name}, decay {decay}"] = _run_updates(OptimizerConfig(weight_decay=decay, **rule))
    schedule = Schedule(type="warmup_linear", total_steps=10, warmup_steps=3)
    found["warmup_linear"] = [learning_rate(schedule, 1e-3, step).hex() for step in range(11)]
    found["tree"] = {str(count): children(Node(0, count))[0].count for count in (2, 3, 5, 8, 9, 24)}
    return found


def _run_updates(config: OptimizerConfig) -> dict[str, str]:
    """Make three updates with clipping, each in two ranges."""
    weights, rule = draw_numbers(LAYOUT.elements, 21), build_rule(config, LAYOUT)
    for step in range(3):
        gradient = draw_numbers(LAYOUT.elements, 22 + step)
        norm = gradient_norm(norm_squared_blocks(gradient))
        rule.begin(0.01 / (step + 1), clip_coefficient(norm, 1.0))
        rule.update(weights, gradient, 0, 50_001)
        rule.update(weights, gradient, 50_001, LAYOUT.elements)
    return {"weights": digest(weights), **{name: digest(each) for name, each in sorted(rule.state.items())}}
