"""adamw_over_memcpy: an AdamW update of 32 Mi parameters, chunk by chunk as the roles do it, over one copy of them.

The kernels take turns, so other load on the machine affects them alike. The other kernels of the data plane are printed
too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.harness.job_settings import load_setting
from benchmarks.harness.report import median, report
from native.library import KERNELS
from plane.master_tensors import MasterTensors
from services.tensors.kernels.arithmetic import Float32Array, accumulate_wire, from_wire, to_wire
from services.tensors.kernels.wire_types import WireDType
from services.tensors.layout import Layout, chunk_range

BOUND = 2.3
ELEMENTS = 32 * 1024 * 1024
ROUNDS = 15
"""Number of rounds. One more round, with fresh pages and cold caches, comes first and isn't counted."""

DTYPES: tuple[WireDType, ...] = ("fp32", "bf16", "fp16")
MEMCPY, ADAMW = "memcpy of 128 MiB", "AdamW"


def run() -> bool:
    """Measure the kernels that this CPU uses."""
    seconds = {name: median(each) for name, each in measure().items()}
    copied = seconds.pop(MEMCPY)
    return report(
        "adamw_over_memcpy",
        seconds[ADAMW] / copied,
        BOUND,
        f"{MEMCPY}: {1e3 * copied:.1f} ms; clone {KERNELS.clone}; n = {ROUNDS}",
        *(f"{name}: {1e3 * each:.1f} ms = {each / copied:.2f} x memcpy" for name, each in seconds.items()),
    )


def measure() -> dict[str, list[float]]:
    """Return the seconds of each kernel over 32 Mi elements, by kernel name, as this process computes them."""
    tensors = _tensors()
    random = np.random.Generator(np.random.Philox(0))
    values, into = (random.standard_normal(ELEMENTS, np.float32) for _ in range(2))
    ranges = [slice(*chunk_range(ELEMENTS, chunk)) for chunk in range(tensors.layout.chunks)]
    payloads = {dtype: [_payload(values[part], dtype) for part in ranges] for dtype in DTYPES}

    def stage() -> None:
        for chunk, payload in enumerate(payloads["fp32"]):
            tensors.stage(chunk, from_wire(payload, "fp32"))

    def update() -> None:
        for chunk in range(tensors.layout.chunks):
            tensors.update(chunk)

    def accumulate(dtype: WireDType) -> None:
        for part, payload in zip(ranges, payloads[dtype], strict=True):
            accumulate_wire(into[part], payload, dtype)

    def narrow(dtype: WireDType) -> None:
        for part in ranges:
            to_wire(values[part], dtype)

    def widen(dtype: WireDType) -> None:
        for payload in payloads[dtype]:
            from_wire(payload, dtype)

    work: dict[str, Callable[[], None]] = {
        MEMCPY: partial(np.copyto, into, values),
        ADAMW: update,
        "mean and norm of fp32": stage,
        **{f"accumulate {dtype}": partial(accumulate, dtype) for dtype in DTYPES},
        **{f"fp32 to {dtype}": partial(narrow, dtype) for dtype in DTYPES if dtype != "fp32"},
        **{f"{dtype} to fp32": partial(widen, dtype) for dtype in DTYPES if dtype != "fp32"},
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for counted in range(-1, ROUNDS):
        stage()  # Each round needs a staged gradient, as each step does.
        tensors.rule.begin(tensors.config.optimizer.lr)
        for name, kernel in work.items():
            started = time.perf_counter()
            kernel()
            if counted >= 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def _tensors() -> MasterTensors:
    """Return an optimizer's tensors, in a layout whose matrices decay and whose biases don't."""
    rows, columns = 2048, 1023
    shapes = [
        (f"{index}.{name}", shape)
        for index in range(16)
        for name, shape in (("weight", (rows, columns)), ("bias", (rows,)))
    ]
    layout = Layout.build((name, shape, len(shape) > 1, name, False) for name, shape in shapes)
    assert layout.elements == ELEMENTS
    tensors = MasterTensors(load_setting(), layout)
    random = np.random.Generator(np.random.Philox(1))
    tensors.restore(random.standard_normal(ELEMENTS, np.float32), tensors.rule.state)
    return tensors


def _payload(values: Float32Array, dtype: WireDType) -> memoryview:
    """Return a payload as an unaligned view, as in a received message."""
    return memoryview(b"\x0a\x7a\x7a" + to_wire(values, dtype).tobytes())[3:]
