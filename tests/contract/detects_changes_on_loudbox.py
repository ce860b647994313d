"""The lock-step detects and names any difference of emulator and ttnn. Started by test_on_loudbox.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ttnn

import mesh.emulator as emulator
from mesh.device import Mesh
from tests.support.contract.golden import assert_matches_golden
from tests.support.contract.lock_step import ContractBroken, LockStep
from tests.support.contract.steps import device_config, open_configured_mesh, run_step

DEVICE = device_config("ddp", (1, 8))


@contextmanager
def loudbox(module: Any) -> Iterator[Mesh]:
    with open_configured_mesh(module, DEVICE) as mesh:
        assert mesh.dtype == module.bfloat16
        yield mesh


class ModuleWith:
    """A device module with replaced functions, which simulates a step that makes other calls."""

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


def _skip_reshape(tt: Any) -> Callable[..., Any]:
    """Keep a bias gradient as [1, 1, 1, F], which ttnn and the download accept as well as [1, F]."""
    return lambda tensor, shape: tensor if list(tensor.shape)[:3] == [1, 1, 1] else tt.reshape(tensor, shape)


def _extra_ops(tt: Any) -> Callable[..., Any]:
    return lambda tensor, **options: tt.neg(tt.neg(tt.gelu(tensor, **options)))


@pytest.mark.parametrize(
    ("function", "change", "message"),
    [
        ("typecast", _lower_precision_loss, "calls differ"),
        ("embedding", _float32_table, "mesh.emulator: accepted; ttnn: RuntimeError"),
        ("reshape", _skip_reshape, "calls differ"),
        ("gelu", _extra_ops, "calls differ"),
    ],
)
def test_a_changed_step_is_detected(
    function: str,
    change: Callable[[Any], Callable[..., Any]],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TIERMESH_REWRITE_GOLDEN", raising=False)
    both = LockStep(emulator, ttnn)
    with loudbox(ModuleWith(both, **{function: change(both)})) as mesh:
        both.reset()
        with pytest.raises(AssertionError, match=message):
            run_step("gpt2", DEVICE, mesh, tmp_path)
            assert_matches_golden("gpt2", both.lines)


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
def test_a_differing_emulator_is_detected(
    softmax: Callable[..., Any], difference: str, tmp_path: Path
) -> None:
    with (
        loudbox(LockStep(ModuleWith(emulator, softmax=softmax), ttnn)) as mesh,
        pytest.raises(ContractBroken, match=rf"call \d+ softmax\(\[2,8,64,64\] BFLOAT16 TILE.*{difference}"),
    ):
        run_step("gpt2", DEVICE, mesh, tmp_path)


def test_an_emulator_that_accepts_more_is_detected() -> None:
    with loudbox(LockStep(emulator, ttnn)) as mesh:
        tt = mesh.tt
        table = tt.zeros([32, 32], dtype=tt.float32, layout=tt.TILE_LAYOUT, device=mesh.handle)
        ids = tt.zeros([1, 32], dtype=tt.uint32, device=mesh.handle)
        with pytest.raises(ContractBroken, match=r"mesh\.emulator: accepted; ttnn: RuntimeError"):
            tt.embedding(ids, table)


def test_a_name_of_one_module_alone_is_detected() -> None:
    with pytest.raises(ContractBroken, match="moreh_adamw: ttnn has it"):
        _ = LockStep(emulator, ttnn).moreh_adamw
