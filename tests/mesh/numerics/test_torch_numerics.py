"""The emulator against PyTorch, where some Python here has it: one process works through all cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from all_cases import CASES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numeric_case import Array, Case, Drawn, as_tuple
from numeric_mesh import draw_operands, exactly, hold, run

from mesh.device import Mesh, open_mesh

ROOT = Path(__file__).resolve().parents[3]
PEER = Path(__file__).with_name("torch_peer.py")
_EXAMPLES = 3
_SECONDS = 120


def torch_python() -> str | None:
    """An interpreter with PyTorch: this one, the benchmarks' peer, or none."""
    if find_spec("torch") is not None:
        return sys.executable
    python = Path(
        os.environ.get("TIERMESH_PEER_PYTHON", ROOT / "build" / "bench" / "torch" / "bin" / "python")
    )
    return str(python) if python.is_file() else None


PYTHON = torch_python()


def known_to_the_peer() -> set[str]:
    """The names of its functions, read without PyTorch."""
    text = PEER.read_text()
    table = text[text.index("FUNCTIONS") : text.index('"""By the case')]
    return {line.split('"')[1] for line in table.splitlines() if line.startswith('    "')}


def draw_examples(case: Case, mesh: Mesh) -> list[tuple[Drawn, list[Array]]]:
    """Operands on the mesh's only chip."""
    examples: list[tuple[Drawn, list[Array]]] = []

    @settings(
        max_examples=_EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def collect(data: Any) -> None:
        examples.append(draw_operands(data.draw, case, mesh, "float32"))

    collect()
    return examples


@pytest.mark.skipif(
    PYTHON is None, reason="no Python here has PyTorch (`make bench ONLY=emulator_over_torch` makes one)"
)
def test_as_pytorch_has_it(tmp_path: Path) -> None:
    assert PYTHON is not None
    cases = {str(case): case for case in CASES if str(case) in known_to_the_peer()}
    assert cases.keys() == known_to_the_peer()
    calls: dict[str, Any] = {}
    arrays: dict[str, Array] = {}
    expected: dict[str, tuple[Case, list[Array], list[Any]]] = {}
    with open_mesh((1, 1), backend="emulator", dtype="float32") as mesh:
        for name, case in cases.items():
            for number, (drawn, values) in enumerate(draw_examples(case, mesh)):
                key = f"{name} {number}"
                calls[key] = (name, len(values), drawn.options)
                arrays.update({f"{key}/{index}": value[0, 0] for index, value in enumerate(values)})
                exact = [exactly(value[0, 0]) for value in values]
                terms = as_tuple(0.0 if case.magnitude is None else case.magnitude(*exact, **drawn.options))
                expected[key] = (
                    case,
                    [one[0, 0] for one in run(case, mesh, drawn, values, "float32")],
                    list(terms),
                )
    np.savez(tmp_path / "operands.npz", calls=json.dumps(calls), **arrays)
    done = subprocess.run(
        [PYTHON, str(PEER), str(tmp_path / "operands.npz"), str(tmp_path / "results.npz")],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    torch_results = np.load(tmp_path / "results.npz")
    for key, (case, results, terms) in expected.items():
        for index, actual in enumerate(results):
            if f"{key}/{index}" not in torch_results:
                continue  # PyTorch keeps means and deviations to itself
            magnitude = terms[min(index, len(terms) - 1)]
            try:
                hold(actual, torch_results[f"{key}/{index}"], case.tolerance, magnitude)
            except AssertionError as error:
                raise AssertionError(f"{key}, result {index}: {error}") from None
