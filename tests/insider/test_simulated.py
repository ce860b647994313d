"""Simulated clusters with an insider: the honest workers finish with the bits of an undisturbed run.

A failing seed prints the command that replays it. Run more with `python -m tests.insider --seeds 10000`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from tests.insider.held import count_held
from tests.insider.lies import Liar, Trick, kinds_of, places_of
from tests.insider.mutations import MUTATIONS
from tests.insider.seeds import run_seed

ROOT = Path(__file__).resolve().parents[2]
QUICK_SEEDS, SEEDS = 25, 170
"""`make test` runs the first seeds, `make test-all` the others."""
QUICK_ROW_SEEDS, ROW_SEEDS = 5, 55
"""The same, of seeds with rows. They take twice as long."""
MUTATION_SEEDS = 60


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("options", "first", "count"),
    [
        pytest.param([], 0, QUICK_SEEDS, id="first"),
        pytest.param([], QUICK_SEEDS, SEEDS - QUICK_SEEDS, id="others", marks=pytest.mark.long),
        pytest.param(["--rows"], 0, QUICK_ROW_SEEDS, id="first-rows"),
        pytest.param(
            ["--rows"], QUICK_ROW_SEEDS, ROW_SEEDS - QUICK_ROW_SEEDS, id="other-rows", marks=pytest.mark.long
        ),
    ],
)
def test_the_honest_finish_in_the_bits_of_an_undisturbed_run(
    options: list[str], first: int, count: int
) -> None:
    command = [sys.executable, "-m", "tests.insider", *options, "--first", str(first), "--seeds", str(count)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{count} seeds" in run.stdout and " 0 failed" in run.stdout


@pytest.mark.parametrize(
    ("mutation", "focus", "expected"), MUTATIONS, ids=[each.values[0].__name__ for each in MUTATIONS]
)
def test_a_fix_that_is_taken_out_fails_a_seed(
    mutation: Any, focus: dict[str, Any], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    problems = set()
    for seed in range(MUTATION_SEEDS):
        problem = run_seed(seed, **focus).problem
        assert not problem.startswith("TypeError"), "the mutation no longer fits the core"
        if problem and expected in problem:
            print(f"seed {seed}: {problem}")
            return
        problems.add(problem)
    pytest.fail(f"{mutation.__name__}: no problem of {MUTATION_SEEDS} seeds says {expected!r}: {problems}")


def test_every_field_and_kind_of_a_workers_messages_is_lied_about() -> None:
    envelope = pb.WorkerMessage.DESCRIPTOR
    told: set[str] = set()
    for seed in range(1500):
        liar = Liar(seed, tricks=[Trick.FIELD])
        for name in kinds_of(envelope):
            message = pb.WorkerMessage(epoch=1)
            getattr(message, name).SetInParent()
            told.add(liar.tell_now(message).detail.partition(" = ")[0])
    expected = set()
    for name in kinds_of(envelope):
        message = pb.WorkerMessage()
        getattr(message, name).SetInParent()
        expected |= {str(place) for place in places_of(message, liar._spared)}
    assert expected <= told
    made_up: list[Any] = [liar.make_up(envelope) for _ in range(300)]
    assert {each.WhichOneof("body") for each in made_up} == set(kinds_of(envelope))


def test_a_seed_tells_the_same_lies_each_time() -> None:
    header = ChunkHeader(job="a", epoch=1, elements=5)
    first, second = ([str(Liar(seed).tell_now(header)) for seed in range(50)] for _ in range(2))
    assert first == second and len(set(first)) > 20


def test_what_is_held_grows_with_lists_texts_numbers_and_messages() -> None:
    class Holder:
        def __init__(self, held: object) -> None:
            self.held = held

    least = count_held(Holder(None))
    for held in ([0] * 1000, "x" * 1000, 1 << 8000, pb.Failure(reason="x" * 1000), {1: Holder(["x" * 1000])}):
        assert count_held(Holder(held)) >= least + 1000
