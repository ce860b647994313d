"""Every op of the emulator against an independent reference, with random operands, sharded and replicated."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mesh.emulator as tt
from mesh.device import Mesh
from tests.support.numerics.all_cases import CASES
from tests.support.numerics.numeric_case import Case
from tests.support.numerics.numeric_mesh import assert_within, compute_expected, draw_operands, run

drawn_by_hypothesis = settings(
    max_examples=8,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

NOT_COMPUTING = {
    "MeshComposerConfig", "MeshDevice", "MeshMapperConfig", "MeshTraceId", "PlacementReplicate", "PlacementShard",
    "begin_trace_capture", "close_mesh_device", "concat_mesh_to_tensor_composer", "create_mesh_composer",
    "create_mesh_mapper", "deallocate", "empty_like", "end_trace_capture", "execute_trace", "get_device_tensors",
    "get_memory_view", "open_mesh_device", "release_trace", "replicate_tensor_to_mesh_mapper", "set_fabric_config",
    "shard_tensor_to_mesh_mapper", "synchronize_device",
}  # fmt: skip
"""Names of the module that compute nothing. Other tests of the emulator cover them."""


def test_every_op_has_a_case() -> None:
    functions = {
        name for name in tt.__all__ if callable(getattr(tt, name)) and not isinstance(getattr(tt, name), type)
    }
    ops = functions - NOT_COMPUTING | {f"experimental.{name}" for name in tt.experimental.__all__}
    assert ops == {case.op for case in CASES}
    assert set(tt.__all__) >= NOT_COMPUTING


@pytest.mark.parametrize("case", CASES, ids=str)
def test_float32(emulated_mesh: Mesh, case: Case) -> None:
    @drawn_by_hypothesis
    @given(st.data())
    def check(data: Any) -> None:
        drawn, values = draw_operands(data.draw, case, emulated_mesh, "float32")
        results = run(case, emulated_mesh, drawn, values, "float32")
        expected = list(compute_expected(case, emulated_mesh, drawn, values))
        assert len(results) == len(expected)
        for actual, (wanted, magnitude) in zip(results, expected, strict=True):
            assert_within(actual, wanted, case.tolerance, magnitude)

    check()


@pytest.mark.parametrize("case", [case for case in CASES if case.rounds], ids=str)
def test_bfloat16_is_float32_rounded_once(emulated_mesh: Mesh, case: Case) -> None:
    @drawn_by_hypothesis
    @given(st.data())
    def check(data: Any) -> None:
        drawn, values = draw_operands(data.draw, case, emulated_mesh, "bfloat16")
        exact = run(case, emulated_mesh, drawn, [value.copy() for value in values], "float32")
        rounded = run(case, emulated_mesh, drawn, values, "bfloat16")
        for actual, unrounded in zip(rounded, exact, strict=True):
            wanted = unrounded
            if unrounded.dtype == np.float32:
                wanted = unrounded.astype(ml_dtypes.bfloat16).astype(np.float32)
            assert np.array_equal(actual, wanted, equal_nan=wanted.dtype == np.float32)

    check()
