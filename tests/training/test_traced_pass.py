"""A traced pass gives the results of an untraced one, also on a device that refuses to capture.

The emulator can't capture, so the tests wrap it in a device that can. Between `begin_trace_capture` and
`end_trace_capture` it records the calls and, as a real device does, leaves their results undefined. `execute_trace`
makes the calls again.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mesh.emulator as emulator
from mesh.axes import Axes
from mesh.device import Mesh, open_mesh
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config
from tests.support.micro_batch import run_micro_batch
from training.inputs import KeptInputs
from training.step import TrainingStep

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(200))


class CapturingDevice:
    """The emulator with support for traces."""

    __name__ = "mesh.emulator"

    def __init__(self) -> None:
        self.capturing = False
        self.calls: list[tuple[Callable[..., Any], Any, Any, Any]] = []
        self.executed = self.released = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(emulator, name)
        if name == "experimental":
            return Namespace(self, found)
        return self.capture(name, found) if callable(found) and name[0].islower() else found

    def capture(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if not self.capturing:
                return function(*arguments, **options)
            if name in ("copy_host_to_device_tensor", "get_device_tensors"):
                raise RuntimeError(f"{name}: not supported during trace capture")
            result = function(*arguments, **options)
            self.calls.append((function, arguments, options, result))
            for tensor in find_tensors(result):
                tensor.array = np.full_like(tensor.array, 77)
            return result

        return call

    def Tensor(self, *arguments: Any, **options: Any) -> Any:  # the name in ttnn
        if self.capturing:
            raise RuntimeError("Tensor: writes are not supported during trace capture")
        return emulator.Tensor(*arguments, **options)

    def begin_trace_capture(self, device: Any, *, cq_id: int) -> int:
        self.capturing = True
        return 5

    def end_trace_capture(self, device: Any, trace: int, *, cq_id: int) -> None:
        self.capturing = False

    def execute_trace(self, device: Any, trace: int, *, cq_id: int, blocking: bool) -> None:
        self.executed += 1
        for function, arguments, options, result in self.calls:
            again = find_tensors(function(*arguments, **options))
            for tensor, value in zip(find_tensors(result), again, strict=True):
                tensor.array = value.array

    def release_trace(self, device: Any, trace: int) -> None:
        self.released += 1
        self.calls.clear()


class Namespace:
    def __init__(self, owner: CapturingDevice, module: Any) -> None:
        self._owner, self._module = owner, module

    def __getattr__(self, name: str) -> Any:
        return self._owner.capture(name, getattr(self._module, name))


def find_tensors(result: Any) -> list[Any]:
    if isinstance(result, emulator.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for part in result for tensor in find_tensors(part)]
    return []


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., JobConfig]:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    data = DataConfig(files=(CorpusFile(path=str(path), sha256=hashlib.sha256(TEXT.encode()).hexdigest()),))

    def make(*, trace: bool, **model: Any) -> JobConfig:
        sizes = {"num_heads": 2, "embedding_dim": 64, "num_blocks": 2, "max_sequence_length": 32}
        return JobConfig(
            seed=7,
            batch_size=8,
            validation_batch_size=8,
            data=data,
            model=GPT2Config(**{**sizes, "dropout_prob": 0.0, **model}),
            device=DeviceConfig(trace=trace),
        )

    return make


@pytest.fixture
def device() -> CapturingDevice:
    return CapturingDevice()


@pytest.fixture
def capturing(device: CapturingDevice) -> Iterator[Mesh]:
    with open_mesh((1, 2), module=device, dtype="float32", axes=Axes(tensor=1), trace=True) as mesh:
        yield mesh


def run_passes(config: JobConfig, mesh: Mesh) -> list[Any]:
    """Return loss and gradient of micro-batches over steps with different weights, with a held-out batch in between."""
    step = TrainingStep(config, mesh)
    weights = step.initial_weights()
    found: list[Any] = []
    for number in range(3):
        for index, entry in enumerate(step.layout.entries):
            step.load(index, (1 + number) * weights[entry.offset : entry.stop])
        for micro_batch in range(2):
            out = np.full(step.layout.elements, np.nan, np.float32)
            told: list[int] = []
            found.append((run_micro_batch(step, number, micro_batch, out, told.append), out))
            assert told[-1] == 0
        found.append(step.evaluate(0))
    step.close()
    return found


@pytest.mark.parametrize("options", [{}, {"runner_type": "memory_efficient", "weight_tying": True}], ids=str)
def test_it_gives_the_results_of_an_untraced_pass(
    device: CapturingDevice, capturing: Mesh, make_config: Callable[..., JobConfig], options: dict[str, Any]
):
    expected = run_passes(make_config(trace=False, **options), capturing)
    assert device.executed == 0
    found = run_passes(make_config(trace=True, **options), capturing)
    assert device.executed == 5  # of six passes, the first is not traced
    assert device.released == 1
    for one, other in zip(found, expected, strict=True):
        assert one[0] == other[0]
        assert np.array_equal(one[1], other[1])


def test_a_device_that_refuses_to_capture_is_logged_once(
    open_emulator: Callable[..., Mesh],
    make_config: Callable[..., JobConfig],
    caplog: pytest.LogCaptureFixture,
):
    mesh = open_emulator()
    expected = run_passes(make_config(trace=False), mesh)
    with caplog.at_level(logging.WARNING, "tiermesh.worker"):
        found = run_passes(make_config(trace=True), mesh)
    assert len(caplog.records) == 1
    assert "capture a trace (" in caplog.records[0].getMessage()
    assert "Not supported for slow dispatch" in caplog.records[0].getMessage()
    assert [one[0] for one in found] == [one[0] for one in expected]
    assert all(np.array_equal(one[1], other[1]) for one, other in zip(found, expected, strict=True))


def test_an_input_that_is_no_array_of_the_batch_is_an_error(mesh: Mesh):
    tt = mesh.tt
    ids = np.zeros((1, 32), np.uint32)
    kept = KeptInputs(mesh, ids)
    from mesh.placement import WHOLE

    with pytest.raises(ValueError, match="no array of its batch"):
        kept.tensor(ids.copy(), np.asarray, tt.uint32, tt.ROW_MAJOR_LAYOUT, WHOLE)
    kept.tensor(ids, np.asarray, tt.uint32, tt.ROW_MAJOR_LAYOUT, WHOLE)
    kept.fill(ids)
    kept.tensor(ids, np.asarray, tt.uint32, tt.ROW_MAJOR_LAYOUT, WHOLE)
    with pytest.raises(ValueError, match=r"more inputs.* 1"):
        kept.tensor(ids, np.asarray, tt.uint32, tt.ROW_MAJOR_LAYOUT, WHOLE)
