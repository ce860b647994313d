"""Random calls of each op: real ttnn and the emulator return alike, or both refuse. Started by test_on_loudbox.py.

A file keeps the call in progress, so that a call that crashes the process is known.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import ttnn
from hypothesis import HealthCheck, given, settings

import mesh.emulator as emulator
from mesh.axes import Axes
from mesh.device import Mesh, open_mesh
from tests.support.contract.calls import Call, make_call
from tests.support.contract.differences import DIFFERENCES, Difference, is_allowed
from tests.support.contract.drawn_ops import EXAMPLES, OPS
from tests.support.contract.lock_step import ContractBroken, LockStep

SHAPE = (2, 4)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with open_mesh(SHAPE, module=LockStep(emulator, ttnn), axes=Axes(0, 1)) as opened:
        yield opened


@pytest.mark.parametrize("op", OPS)
def test_both_accept_alike_or_both_refuse(op: str, mesh: Mesh) -> None:
    last_call = os.environ.get("TIERMESH_LAST_CALL")
    accepted_calls = 0

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(OPS[op])
    def check_call(call: Call) -> None:
        nonlocal accepted_calls
        if last_call:
            Path(last_call).write_text(repr(call))
        try:
            make_call(call, mesh.tt, mesh.handle, SHAPE)
            accepted_calls += 1
        except ContractBroken as broken:
            if not broken.accepted or not is_allowed(call, wider=broken.accepted[0]):
                raise
        except (RuntimeError, TypeError):
            pass  # Both modules refuse.

    check_call()
    mesh.tt.reset()
    assert accepted_calls > 0, f"{op}: both modules refuse every drawn call; draw valid ones"


@pytest.mark.parametrize(
    ("difference", "call"),
    [(difference, call) for difference in DIFFERENCES for call in difference.examples],
    ids=lambda one: one.op if isinstance(one, Call) else "",
)
def test_every_listed_difference_exists(difference: Difference, call: Call, mesh: Mesh) -> None:
    assert difference.applies(call)
    with pytest.raises(ContractBroken) as broken:
        make_call(call, mesh.tt, mesh.handle, SHAPE)
    assert broken.value.accepted == (difference.wider, not difference.wider)


def test_every_op_of_a_difference_has_an_example() -> None:
    assert all({call.op for call in one.examples} == set(one.ops) for one in DIFFERENCES)


def test_a_wrong_emulator_is_detected(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that drawn calls detect an emulator that returns wrong shapes or accepts too much."""

    def ignore_second(first: Any, second: Any, **options: Any) -> Any:
        return emulator.neg(first)

    _check_detected("add", ignore_second, mesh, monkeypatch)
    _check_detected("experimental.nlp_concat_heads", emulator.relu, mesh, monkeypatch)


def _check_detected(op: str, wrong: Callable[..., Any], mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    *path, name = op.split(".")
    both = LockStep(emulator, ttnn)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(OPS[op])
    def check_call(call: Call) -> None:
        with suppress(RuntimeError, TypeError):
            make_call(call, both, mesh.handle, SHAPE)

    with monkeypatch.context() as patched:
        patched.setattr(reduce(getattr, path, emulator), name, wrong)
        with pytest.raises(ContractBroken):
            check_call()
