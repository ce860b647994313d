"""The lock-step of emulator and ttnn is held to bite: what differs is found and named. Run by test_on_loudbox.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ttnn

import mesh.emulator as emulator
from mesh.device import Mesh
from tests.support.contract.golden import hold_to_golden
from tests.support.contract.lock_step import ContractBroken, LockStep
from tests.support.contract.steps import device_config, opened, run_step

DEVICE = device_config("ddp", (1, 8))


@contextmanager
def loudbox(module: Any) -> Iterator[Mesh]:
    with opened(module, DEVICE) as mesh:
        assert mesh.dtype == module.bfloat16
        yield mesh


class Changed:
    """A device module of which one function is another: what a step would be that called something else."""

    def __init__(self, module: Any, **functions: Callable[..., Any]) -> None:
        self.__name__ = module.__name__
        self._module = module
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        return self._functions[name] if name in self._functions else getattr(self._module, name)


def _lower_precision_loss(tt: Any) -> Callable[..., Any]:
    return lambda tensor, dtype: tt.typecast(tensor, tt.bfloat16)


def _float32_table(tt: Any) -> Callable[..., Any]:
    return lambda ids, table, **options: tt.embedding(ids, tt.typecast(table, tt.float32), **options)


def _one_reshape_less(tt: Any) -> Callable[..., Any]:
    """The bias gradient stays [1, 1, 1, F], which ttnn and the reading back take as well as [1, F]."""
    return lambda tensor, shape: tensor if list(tensor.shape)[:3] == [1, 1, 1] else tt.reshape(tensor, shape)


def _one_op_more(tt: Any) -> Callable[..., Any]:
    return lambda tensor, **options: tt.neg(tt.neg(tt.gelu(tensor, **options)))


@pytest.mark.parametrize(
    ("function", "change", "caught_by"),
    [
        ("typecast", _lower_precision_loss, "calls other ops"),
        ("embedding", _float32_table, "mesh.emulator: accepted; ttnn: RuntimeError"),
        ("reshape", _one_reshape_less, "calls other ops"),
        ("gelu", _one_op_more, "calls other ops"),
    ],
)
def test_it_bites_when_the_step_changes(
    function: str,
    change: Callable[[Any], Callable[..., Any]],
    caught_by: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TIERMESH_REWRITE_GOLDEN", raising=False)
    both = LockStep(emulator, ttnn)
    with loudbox(Changed(both, **{function: change(both)})) as mesh:
        both.start()
        with pytest.raises(AssertionError, match=caught_by):
            run_step("gpt2", DEVICE, mesh, tmp_path)
            hold_to_golden("gpt2", both.lines)


def _other_dtype(*arguments: Any, **options: Any) -> Any:
    return emulator.typecast(emulator.softmax(*arguments, **options), emulator.float32)


def _other_shape(*arguments: Any, **options: Any) -> Any:
    tensor = emulator.softmax(*arguments, **options)
    return emulator.reshape(tensor, [1, *tensor.shape])


def _other_layout(*arguments: Any, **options: Any) -> Any:
    return emulator.to_layout(emulator.softmax(*arguments, **options), emulator.ROW_MAJOR_LAYOUT)


def _on_the_host(*arguments: Any, **options: Any) -> Any:
    return emulator.softmax(*arguments, **options).cpu()


def _refused(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("softmax: refused")


@pytest.mark.parametrize(
    ("softmax", "difference"),
    [
        (_other_dtype, "dtype FLOAT32 .* BFLOAT16"),
        (_other_shape, "shape"),
        (_other_layout, "layout ROW_MAJOR .* TILE"),
        (_on_the_host, "storage HOST .* DEVICE"),
        (_refused, "RuntimeError softmax: refused; ttnn: accepted"),
    ],
)
def test_it_bites_when_the_emulator_differs(
    softmax: Callable[..., Any], difference: str, tmp_path: Path
) -> None:
    with (
        loudbox(LockStep(Changed(emulator, softmax=softmax), ttnn)) as mesh,
        pytest.raises(ContractBroken, match=rf"call \d+ softmax\(\[2,8,64,64\] BFLOAT16 TILE.*{difference}"),
    ):
        run_step("gpt2", DEVICE, mesh, tmp_path)


def test_it_bites_when_the_emulator_accepts_more() -> None:
    with loudbox(LockStep(emulator, ttnn)) as mesh:
        tt = mesh.tt
        table = tt.zeros([32, 32], dtype=tt.float32, layout=tt.TILE_LAYOUT, device=mesh.handle)
        ids = tt.zeros([1, 32], dtype=tt.uint32, device=mesh.handle)
        with pytest.raises(ContractBroken, match=r"mesh\.emulator: accepted; ttnn: RuntimeError"):
            tt.embedding(ids, table)


def test_it_bites_when_a_name_is_on_one_side_only() -> None:
    with pytest.raises(ContractBroken, match="moreh_adamw: ttnn has it"):
        _ = LockStep(emulator, ttnn).moreh_adamw
