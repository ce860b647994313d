"""Time the tape against direct calls of ttnn on a mocked board. tape_overhead.py runs this in a process of its own.

    python -m benchmarks.figures.tape_on_mocked_board DEVICES ROUNDS

DEVICES is the number of chips in a row, over which the batch is split. It prints a JSON object: the number of ttnn
calls in a pass, and the seconds of each round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ttnn

from mesh.axes import Axes
from mesh.device import open_mesh
from services.config.models import GPT2Config
from training.autograd.tape import Tape
from training.models.build import (
    build_model,
    load_parameter,
)
from training.models.initialise import (
    draw_initial_value,
)
from training.seeds import derive_seed32

MODEL = GPT2Config(num_heads=6, embedding_dim=384, num_blocks=6, max_sequence_length=256, dropout_prob=0.0)
VOCABULARY = 96
SEQUENCES_PER_DEVICE = 4
WARM_UP = 3
Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class OpRecorder:
    """A proxy of a module that records calls of functions and of Tensor. Other classes only make options."""

    def __init__(self, module: Any, calls: list[Call]) -> None:
        self._module = module
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if name == "experimental":
            return OpRecorder(value, self._calls)
        if not callable(value) or (isinstance(value, type) and name != "Tensor"):
            return value

        def called(*arguments: Any, **options: Any) -> Any:
            self._calls.append((value, arguments, options))
            return value(*arguments, **options)

        return called


def main(devices: int, rounds: int) -> None:
    axes = Axes(data=1) if devices > 1 else Axes()
    with open_mesh((1, devices), module=ttnn, axes=axes) as mesh:
        model = build_model(MODEL, VOCABULARY, mesh)
        for parameter in model.parameters():
            load_parameter(mesh, parameter, draw_initial_value(parameter, 1))
        shape = (devices * SEQUENCES_PER_DEVICE, MODEL.max_sequence_length)
        batch = np.arange(np.prod(shape), dtype=np.uint32).reshape(shape) % VOCABULARY

        def with_tape() -> None:
            tape = Tape(mesh, dropout_seed=lambda site: derive_seed32(1, "dropout", 0, 0, site))
            loss = model.loss(tape, batch, batch)
            tape.backward(loss, 1 / batch.size, lambda parameter, gradient: None)

        calls: list[Call] = []
        mesh.tt = OpRecorder(ttnn, calls)
        with_tape()
        mesh.tt = ttnn

        def bare() -> None:
            for function, arguments, options in calls:
                function(*arguments, **options)

        seconds: dict[str, list[float]] = {"tape": [], "bare": []}
        for number in range(WARM_UP + rounds):
            for name, work in (("tape", with_tape), ("bare", bare)):
                started = time.perf_counter()
                work()
                taken = time.perf_counter() - started
                if number >= WARM_UP:
                    seconds[name].append(taken)
        print(json.dumps({"calls": len(calls), **seconds}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
