"""Trackers that the aggregator writes: each step once, over a killed aggregator and a job that goes back."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import grpc
import pytest

from tests.support.cluster.bits import CHECKPOINT_EVERY, STEPS, Bits, bits, gpt_config, spec_of
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import Cluster


def wait_written(folder: Path, kind: str, step: int) -> None:
    """Wait until this is the newest point in both files, since each tracker writes on a thread of its own."""
    for name, begin in (
        ("metrics.csv", f"{kind},{step},"),
        ("metrics.jsonl", f'{{"kind": "{kind}", "step": {step},'),
    ):

        def is_newest(path: Path = folder / name, begin: str = begin) -> bool:
            *_, line, _ = ("", *(path.read_text() if path.exists() else "").split("\n"))
            return line.startswith(begin)

        eventually(is_newest, f"the {kind} of step {step} in {name}")


@pytest.mark.long
def test_steps_are_tracked_once_and_bits_stay(tmp_path: Path, corpus: Path, undisturbed: Bits) -> None:
    spec = spec_of(corpus.parent, gpt_config(corpus, tracking=["csv", "jsonl"]))
    before = CHECKPOINT_EVERY + 1
    with Cluster(tmp_path, tiers=3, workers=1, steps=before) as cluster:
        with pytest.raises(
            grpc.RpcError, match=r"mlflow is not installed at the aggregator|is not set at the aggregator"
        ):
            cluster.submit(spec_of(corpus.parent, gpt_config(corpus, tracking="mlflow")))
        job = cluster.submit(spec)
        (folder,) = eventually(lambda: list(tmp_path.glob(f"*/tracking/{job}")), "its folder")
        cluster.wait_step(job, before)
        wait_written(folder, "step", before)  # points that wait are lost with the aggregator
        cluster.aggregator.kill()
        cluster.start_aggregator()
        assert cluster.optimizer is not None
        cluster.optimizer.kill()  # the job goes back to a checkpoint
        cluster.start_optimizer()
        ended = cluster.finish(job)
        assert bits(ended).model_sha256 == undisturbed.model_sha256

        wait_written(folder, "evaluation", STEPS)
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "step"]
    steps = [int(row["step"]) for row in rows]
    assert steps == list(range(1, STEPS + 1))
    assert {row["tiermesh_mfu_ratio"] for row in rows} == {""}, "the emulator has no peak"
    assert len({row["tiermesh_parameters"] for row in rows}) == 1
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in found if each["kind"] == "step"] == steps
    assert [each for each in found if each["kind"] == "evaluation"][-1]["step"] == STEPS
