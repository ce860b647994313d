"""adamw_over_memcpy: an AdamW update of 32 Mi parameters, chunk by chunk as the roles do it, over one copy of them.

The kernels take turns, so other load on the machine affects them alike. The other kernels of the data plane are printed
too, as are all of them in pure numpy, measured in a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from benchmarks.harness.job_settings import ROOT, load_setting
from benchmarks.harness.report import median, report
from plane import update_rules as rules
from plane.master_tensors import MasterTensors
from services.errors import Failed
from services.tensors.kernels import compiler
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
    """Measure the compiled kernels and numpy."""
    ours, by_numpy = measure(), _measure_numpy()
    copied = median(ours[MEMCPY])
    details = [
        f"{name}: {_row(ours, name)}; by numpy {_row(by_numpy, name)}" for name in ours if name != MEMCPY
    ]
    if compiler.load(rules.COMPILED) is None:
        details.append("there are no compiled kernels here: the figure is numpy's")
    return report(
        "adamw_over_memcpy",
        median(ours[ADAMW]) / copied,
        BOUND,
        f"{MEMCPY}: {1e3 * copied:.1f} ms; beside numpy's {1e3 * median(by_numpy[MEMCPY]):.1f} ms; n = {ROUNDS}",
        *details,
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


def _measure_numpy() -> dict[str, list[float]]:
    done = subprocess.run(
        (sys.executable, "-m", "benchmarks.figures.adamw_over_memcpy"),
        env={**os.environ, compiler.VARIABLE: "numpy"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failed(
            f"the measurement of numpy's path ended with {done.returncode}: {done.stderr.strip()[-500:]}"
        )
    measured: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _row(measured: dict[str, list[float]], name: str) -> str:
    seconds = median(measured[name])
    return f"{1e3 * seconds:.1f} ms = {seconds / median(measured[MEMCPY]):.2f} x memcpy"


if __name__ == "__main__":
    print(json.dumps(measure()))
