"""Drawn calls of each op: real ttnn and the emulator take them alike, or both refuse. Run by test_on_loudbox.py.

The call that is being made is kept in a file, so that one that ends the process shows.
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
from tests.support.contract.calls import Call, made
from tests.support.contract.differences import DIFFERENCES, Difference, allowed
from tests.support.contract.drawn_ops import EXAMPLES, OPS
from tests.support.contract.lock_step import ContractBroken, LockStep

SHAPE = (2, 4)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with open_mesh(SHAPE, module=LockStep(emulator, ttnn), axes=Axes(0, 1)) as opened:
        yield opened


@pytest.mark.parametrize("op", OPS)
def test_both_take_it_alike_or_both_refuse(op: str, mesh: Mesh) -> None:
    last = os.environ.get("TIERMESH_LAST_CALL")
    taken = 0

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(OPS[op])
    def holds(call: Call) -> None:
        nonlocal taken
        if last:
            Path(last).write_text(repr(call))
        try:
            made(call, mesh.tt, mesh.handle, SHAPE)
            taken += 1
        except ContractBroken as broken:
            if not broken.accepted or not allowed(call, wider=broken.accepted[0]):
                raise
        except (RuntimeError, TypeError):
            pass  # of both

    holds()
    mesh.tt.start()
    assert taken > 0, f"no call of {op} that was drawn is one that both take: they show nothing"


@pytest.mark.parametrize(
    ("difference", "call"),
    [(difference, call) for difference in DIFFERENCES for call in difference.examples],
    ids=lambda one: one.op if isinstance(one, Call) else "",
)
def test_no_difference_is_listed_that_is_none(difference: Difference, call: Call, mesh: Mesh) -> None:
    assert difference.applies(call)
    with pytest.raises(ContractBroken) as broken:
        made(call, mesh.tt, mesh.handle, SHAPE)
    assert broken.value.accepted == (difference.wider, not difference.wider)


def test_every_op_of_a_difference_has_an_example() -> None:
    assert all({call.op for call in one.examples} == set(one.ops) for one in DIFFERENCES)


def test_it_bites(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulator that is wrong in what it returns, or takes too much, is found by a drawn call."""

    def of_first(first: Any, second: Any, **options: Any) -> Any:
        return emulator.neg(first)

    _bitten("add", of_first, mesh, monkeypatch)
    _bitten("experimental.nlp_concat_heads", emulator.relu, mesh, monkeypatch)


def _bitten(op: str, wrong: Callable[..., Any], mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    *path, name = op.split(".")
    bites = LockStep(emulator, ttnn)

    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(OPS[op])
    def holds(call: Call) -> None:
        with suppress(RuntimeError, TypeError):
            made(call, bites, mesh.handle, SHAPE)

    with monkeypatch.context() as patched:
        patched.setattr(reduce(getattr, path, emulator), name, wrong)
        with pytest.raises(ContractBroken):
            holds()
