"""Stages that have a process each, here a thread each, compute what all of them in one process do."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config
from services.config.pipeline import PipelineConfig
from services.errors import Refused
from services.pipeline.exchange import Compute, ExactArray, FinishedPass
from services.pipeline.schedule import Pass
from training.data.tokenizer import build_character_tokenizer
from training.range_step import Float32Array
from training.step import TrainingStep

STAGES = 3
MICRO_BATCHES = 8
TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(60))
MODEL = GPT2Config(
    num_heads=2, embedding_dim=64, num_blocks=3, max_sequence_length=32, dropout_prob=0.1, weight_tying=True
)


class Exchange:
    """Arrays on their way between threads, by the pass that takes them, or by the tied part's micro-batch.

    Attributes:
        turn: held by the thread that computes, as the emulator takes one at a time; a thread that waits lets go of it.
    """

    def __init__(self) -> None:
        self._arrays: dict[Pass | int, ExactArray] = {}
        self.turn = threading.Condition()

    def _put(self, key: Pass | int, array: ExactArray) -> None:
        self._arrays[key] = array
        self.turn.notify_all()

    def _take(self, key: Pass | int) -> ExactArray:
        assert self.turn.wait_for(lambda: key in self._arrays, timeout=60)
        return self._arrays.pop(key)

    send = send_tied = _put
    receive = receive_tied = _take


@pytest.fixture
def config(tmp_path: Path) -> JobConfig:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    file = CorpusFile(path=str(path), sha256=hashlib.sha256(TEXT.encode()).hexdigest())
    return JobConfig(
        model=MODEL,
        seed=7,
        batch_size=4,
        validation_batch_size=4,
        num_workers=STAGES,
        gradient_accumulation_steps=MICRO_BATCHES,
        pipeline=PipelineConfig(blocks_per_stage=(1,) * STAGES),
        data=DataConfig(files=(file,), vocab_size=build_character_tokenizer(frozenset(TEXT)).size),
    )


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    with open_mesh((1, 1), backend="emulator") as mesh:
        yield mesh


def without_corpus(config: JobConfig) -> JobConfig:
    assert config.data is not None
    file = config.data.files[0].model_copy(update={"path": "/nowhere/text.txt"})
    return config.model_copy(update={"data": config.data.model_copy(update={"files": (file,)})})


def build(config: JobConfig, mesh: Mesh, first: int, count: int) -> TrainingStep:
    stages = dict.fromkeys(range(first, first + count), mesh)
    return TrainingStep(config, stages)


def run(
    stages: TrainingStep, weights: Float32Array, exchange: Exchange, count: int = MICRO_BATCHES
) -> tuple[Float32Array, list[float]]:
    """Return the stages' part of the gradients of a lease, 0 elsewhere, and losses of micro- and held-out batches."""
    gradients = np.zeros((count, stages.layout.elements), np.float32)

    def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
        return compute(gradients[index, stages.ranges[range_index]], lambda offset: None)

    with exchange.turn:
        for index, entry in enumerate(stages.layout.entries):
            stages.load(index, weights[entry.offset : entry.stop])
        losses = stages.micro_batches(3, 0, count, add_leaf, exchange)
        evaluated = stages.evaluate(0, exchange)
        return gradients, losses if evaluated is None else [*losses, evaluated[0]]


def run_apart(
    apart: list[TrainingStep], weights: Float32Array, count: int = MICRO_BATCHES
) -> list[tuple[Float32Array, list[float]]]:
    """Return what `run` does for each, with a thread for each."""
    exchange = Exchange()
    with ThreadPoolExecutor(len(apart)) as pool:
        return list(pool.map(lambda each: run(each, weights, exchange, count), apart))


def test_a_middle_stage_needs_no_corpus(config: JobConfig, mesh: Mesh) -> None:
    whole = build(config, mesh, 0, STAGES)
    weights = whole.initial_weights()
    expected = run(whole, weights, Exchange())
    blind = without_corpus(config)
    for first in (0, STAGES - 1):
        with pytest.raises(Refused, match="data_path"):
            build(blind, mesh, first, 1)
    apart = [build(blind if 0 < stage < STAGES - 1 else config, mesh, stage, 1) for stage in range(STAGES)]
    assert [each.evaluation_batches for each in apart] == [
        whole.evaluation_batches,
        0,
        whole.evaluation_batches,
    ]
    counted = blind.model_copy(update={"evaluation_batches": whole.evaluation_batches})
    assert build(counted, mesh, 1, 1).evaluation_batches == whole.evaluation_batches
    assert {each.tokens_per_micro_batch for each in apart} == {whole.tokens_per_micro_batch}
    runs = run_apart(apart, weights)
    assert np.array_equal(sum(gradients for gradients, _ in runs), expected[0])
    assert runs[-1][1] == expected[1] and len(expected[1]) == MICRO_BATCHES + 1


def test_a_stage_keeps_as_many_micro_batches_as_its_schedule_says_however_many_there_are(
    config: JobConfig,
) -> None:
    with open_mesh((STAGES, 1), backend="emulator") as mesh:
        meshes = mesh.split(STAGES, Axes())
        apart = [build(config, own, stage, 1) for stage, own in enumerate(meshes)]
        assert [each.activation_bytes for each in apart] == [{}, {}, {}]
        weights = np.concatenate([each.initial_weights() for each in apart])
        found = []
        for count in (1, 8, 32):
            run_apart(apart, weights, count)
            found.append([each.activation_bytes[stage] for stage, each in enumerate(apart)])
    one, few, many = found
    assert few == many == [5 * one[0], 3 * one[1], one[2]]
    assert all(one)


def test_stages_that_share_chips_are_measured_together(config: JobConfig, mesh: Mesh) -> None:
    whole = build(config, mesh, 0, STAGES)
    weights = whole.initial_weights()
    run(whole, weights, Exchange())
    first_lease = whole.activation_bytes
    run(whole, weights, Exchange())
    assert first_lease == whole.activation_bytes and list(first_lease) == [0]
