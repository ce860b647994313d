"""ttnn refuses float32 for the ops of FLOAT32_OPS, and the emulator accepts it. Started by test_on_loudbox.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ttnn

import mesh.emulator as emulator
from mesh.emulator.float32_extensions import FLOAT32_OPS


class OpenModule:
    """A device module with its own open mesh, and functions that make operands."""

    def __init__(self, module: Any) -> None:
        self.tt = module
        self.device = module.open_mesh_device(module.MeshShape(1, 8))

    def floats(self, dtype: str, *shape: int) -> Any:
        return self._tensor(np.ones(shape, np.float32), dtype, "TILE_LAYOUT")

    def ids(self, *shape: int) -> Any:
        return self._tensor(np.zeros(shape, np.uint32), "uint32", "ROW_MAJOR_LAYOUT")

    def _tensor(self, values: np.ndarray[Any, Any], dtype: str, layout: str) -> Any:
        tt = self.tt
        return tt.Tensor(values, getattr(tt, dtype), device=self.device, layout=getattr(tt, layout))


@pytest.fixture(scope="module")
def modules() -> Iterator[list[OpenModule]]:
    opened = [OpenModule(emulator), OpenModule(ttnn)]
    yield opened
    for one in opened:
        one.tt.close_mesh_device(one.device)


CALLS: dict[str, Callable[[OpenModule, str], Any]] = {
    "embedding": lambda on, d: on.tt.embedding(on.ids(2, 32), on.floats(d, 68, 64), layout=on.tt.TILE_LAYOUT),
    "embedding_bw": lambda on, d: on.tt.embedding_bw(
        on.ids(2, 32), on.floats(d, 68, 64), on.floats(d, 1, 1, 64, 64)
    ),
    "moreh_layer_norm": lambda on, d: on.tt.moreh_layer_norm(
        on.floats(d, 2, 1, 32, 64), 1, 1e-5, on.floats(d, 1, 64), on.floats(d, 1, 64)
    ),
    "moreh_layer_norm_backward": lambda on, d: on.tt.moreh_layer_norm_backward(
        on.floats(d, 2, 1, 32, 64),
        on.floats(d, 2, 1, 32, 64),
        on.floats(d, 2, 1, 32),
        on.floats(d, 2, 1, 32),
        1,
        gamma=on.floats(d, 1, 64),
        input_grad=on.floats(d, 2, 1, 32, 64),
    ),
    "moreh_softmax_backward": lambda on, d: on.tt.moreh_softmax_backward(
        on.floats(d, 2, 2, 32, 32), on.floats(d, 2, 2, 32, 32), 3
    ),
    "moreh_logsoftmax_backward": lambda on, d: on.tt.moreh_logsoftmax_backward(
        on.floats(d, 32, 64), on.floats(d, 32, 64), 1
    ),
    "experimental.dropout": lambda on, d: on.tt.experimental.dropout(
        on.floats(d, 2, 1, 32, 64), probability=0.1, scale=1 / 0.9, seed=1
    ),
}


def test_every_float32_op_has_a_call() -> None:
    assert CALLS.keys() == FLOAT32_OPS.keys()


@pytest.mark.parametrize("op", FLOAT32_OPS)
def test_only_the_emulator_accepts_float32(modules: list[OpenModule], op: str) -> None:
    emulated, real = modules
    for on in modules:
        CALLS[op](on, "bfloat16")
    CALLS[op](emulated, "float32")
    with pytest.raises(RuntimeError, match=r"(?i)bfloat16|data types|dtype"):
        CALLS[op](real, "float32")
