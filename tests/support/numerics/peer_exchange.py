"""Compares the emulator with a peer, a script in another process. Operands and results are exchanged in files."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mesh.device import Mesh, open_mesh
from tests.support.numerics.all_cases import CASES
from tests.support.numerics.numeric_case import Array, Case, Drawn, as_tuple
from tests.support.numerics.numeric_mesh import assert_within, draw_operands, run, to_float64

ROOT = Path(__file__).resolve().parents[3]
_EXAMPLES = 3
_TIMEOUT_SECONDS = 120


def functions_of(peer: Path) -> set[str]:
    """Return the names of the cases in a peer's script, without running it."""
    text = peer.read_text()
    table = text[text.index("FUNCTIONS") : text.index('"""Functions by')]
    return {line.split('"')[1] for line in table.splitlines() if line.startswith('    "')}


def assert_matches_peer(python: str, peer: Path, folder: Path) -> None:
    """Check the emulator, on one chip, against the script `peer` for all cases that the script has."""
    names = functions_of(peer)
    cases = {str(case): case for case in CASES if str(case) in names}
    assert cases.keys() == names
    calls: dict[str, Any] = {}
    operands: dict[str, Array] = {}
    ours: dict[str, tuple[Case, list[Array], tuple[Any, ...]]] = {}
    with open_mesh((1, 1), backend="emulator", dtype="float32") as mesh:
        for name, case in cases.items():
            for number, (drawn, values) in enumerate(_examples(case, mesh)):
                key = f"{name} {number}"
                calls[key] = (name, len(values), drawn.options)
                operands.update({f"{key}/{index}": value[0, 0] for index, value in enumerate(values)})
                exact = [to_float64(value[0, 0]) for value in values]
                terms = as_tuple(0.0 if case.magnitude is None else case.magnitude(*exact, **drawn.options))
                results = [one[0, 0] for one in run(case, mesh, drawn, values, "float32")]
                ours[key] = case, results, terms
    theirs = _run_peer(python, peer, folder, calls, operands)
    for key, (case, results, terms) in ours.items():
        for index, actual in enumerate(results):
            if f"{key}/{index}" not in theirs:
                continue  # A peer may not return means and deviations.
            try:
                assert_within(
                    actual, theirs[f"{key}/{index}"], case.tolerance, terms[min(index, len(terms) - 1)]
                )
            except AssertionError as error:
                raise AssertionError(f"{key}, result {index}: {error}") from None


def _examples(case: Case, mesh: Mesh) -> list[tuple[Drawn, list[Array]]]:
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


def _run_peer(
    python: str, peer: Path, folder: Path, calls: dict[str, Any], operands: dict[str, Array]
) -> dict[str, Array]:
    np.savez(folder / "operands.npz", calls=json.dumps(calls), **operands)
    done = subprocess.run(
        [python, str(peer), str(folder / "operands.npz"), str(folder / "results.npz")],
        env={**os.environ, "LOGURU_LEVEL": "INFO", "PYTHONPATH": os.pathsep.join(_search_path())},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(np.load(folder / "results.npz"))


def _search_path() -> list[str]:
    given_path = os.environ.get("PYTHONPATH")
    return [str(ROOT), *([given_path] if given_path else [])]
