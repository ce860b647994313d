"""The training step: determinism, early gradients, parallel strategies, evaluation, files, and that it learns."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from mesh.device import Mesh, open_mesh
from services.config.device import DeviceConfig
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig, OptimizerConfig
from services.config.models import GPT2Config, LinearRegressionConfig
from services.corpora.token_file import describe_token_file
from services.errors import Refused
from tests.support.micro_batch import run_micro_batch
from training.autograd.variable import Parameter, Tensor
from training.data.tokenizer import build_character_tokenizer
from training.job_data import JobData
from training.parameter_placement import choose_axes
from training.step import TrainingStep
from training.weights import Weights

TEXT = "".join(f"{number} times {number} is {number * number}.\n" for number in range(200))
SMALL: dict[str, Any] = {
    "num_heads": 2,
    "embedding_dim": 64,
    "num_blocks": 2,
    "max_sequence_length": 32,
    "dropout_prob": 0.1,
}


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., JobConfig]:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)

    def make(model: dict[str, Any] | None = None, **changes: Any) -> JobConfig:
        data = DataConfig(
            files=(CorpusFile(path=str(path), sha256=hashlib.sha256(TEXT.encode()).hexdigest()),)
        )
        fields = {"seed": 7, "batch_size": 8, "validation_batch_size": 8, "data": data, **changes}
        return JobConfig(model=GPT2Config(**{**SMALL, **(model or {})}), **fields)

    return make


def load_step(config: JobConfig, mesh: Mesh) -> TrainingStep:
    step = TrainingStep(config, mesh)
    load_weights(step, step.initial_weights())
    return step


def load_weights(step: TrainingStep, weights: Any) -> None:
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])


def compute_gradient(step: TrainingStep, at: int = 0, index: int = 0) -> tuple[float, Any]:
    out = np.full(step.layout.elements, np.nan, np.float32)
    loss = run_micro_batch(step, at, index, out)
    return loss, out


def test_same_step_and_index_same_bits(mesh: Mesh, make_config: Callable[..., JobConfig]):
    first_loss, first = compute_gradient(load_step(make_config(), mesh), 3, 1)
    step = load_step(make_config(), mesh)
    compute_gradient(step, 9, 9)  # what was computed before makes no difference
    loss, again = compute_gradient(step, 3, 1)
    assert loss == first_loss
    assert again.tobytes() == first.tobytes()
    assert compute_gradient(step, 3, 2)[0] != loss
    assert compute_gradient(step, 4, 1)[0] != loss
    assert compute_gradient(load_step(make_config(seed=8), mesh), 3, 1)[0] != loss


def test_each_micro_batch_has_its_own_dropout(mesh: Mesh, make_config: Callable[..., JobConfig]):
    with_dropout = compute_gradient(load_step(make_config(), mesh))[0]
    without = compute_gradient(load_step(make_config({"dropout_prob": 0.0}), mesh))[0]
    assert with_dropout != without


def test_gradients_are_complete_from_the_offset_that_is_reported(
    mesh: Mesh, make_config: Callable[..., JobConfig]
):
    step = load_step(make_config({"weight_tying": True}), mesh)
    expected = compute_gradient(step)[1]
    out = np.full(step.layout.elements, np.nan, np.float32)
    offsets: list[int] = []

    def ready(offset: int) -> None:
        offsets.append(offset)
        np.testing.assert_array_equal(out[offset:], expected[offset:])

    run_micro_batch(step, 0, 0, out, ready)
    assert offsets == sorted(offsets, reverse=True)
    assert offsets[-1] == 0
    # Incomplete gradients are untouched; the tied embedding comes last.
    assert len(offsets) > len(step.layout.entries) // 2
    assert set(offsets) <= {entry.offset for entry in step.layout.entries}


@pytest.mark.parametrize(
    "device",
    [
        DeviceConfig(mesh_shape=(1, 8), enable_ddp=True),
        DeviceConfig(mesh_shape=(4, 1), enable_ddp=True),
        DeviceConfig(mesh_shape=(1, 2), enable_tp=True),
        DeviceConfig(mesh_shape=(2, 1), enable_fsdp=True),
        DeviceConfig(mesh_shape=(4, 2), enable_ddp=True, enable_tp=True),
        DeviceConfig(mesh_shape=(2, 2), enable_fsdp=True, enable_tp=True, axis_order=("tensor", "data")),
    ],
    ids=lambda device: f"{device.mesh_shape}, data {device.data_axis}, tensor {device.tensor_axis}",
)
@pytest.mark.parametrize("tying", [False, True])
def test_every_strategy_gives_the_same_step(
    open_emulator: Callable[..., Mesh],
    make_config: Callable[..., JobConfig],
    device: DeviceConfig,
    tying: bool,
):
    config = make_config({"dropout_prob": 0.0, "weight_tying": tying})
    single_step = load_step(config, open_emulator())
    single_loss, single = compute_gradient(single_step)
    single_sums = [single_step.evaluate(index) for index in range(single_step.evaluation_batches)]
    spread_step = load_step(config, open_emulator(device.mesh_shape, axes=choose_axes(device)))
    loss, spread = compute_gradient(spread_step)
    assert loss == pytest.approx(single_loss, rel=1e-6)
    for entry in spread_step.layout.entries:
        ours, theirs = (values[entry.offset : entry.stop] for values in (spread, single))
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max(), entry.name
    for index, (total, rows) in enumerate(single_sums):
        spread_total, spread_rows = spread_step.evaluate(index)
        assert spread_rows == rows
        assert spread_total == pytest.approx(total, rel=1e-6)


def test_evaluation_covers_the_held_out_split(mesh: Mesh, make_config: Callable[..., JobConfig]):
    sums = {}
    for size in (1, 8):
        step = load_step(make_config(validation_batch_size=size), mesh)
        results = [step.evaluate(index) for index in range(step.evaluation_batches)]
        assert results == [step.evaluate(index) for index in range(step.evaluation_batches)]
        sums[size] = [sum(part) for part in zip(*results, strict=True)]
    held_out = len(TEXT) - int(0.9 * len(TEXT))
    assert sums[1][1] == sums[8][1] == held_out - 1
    assert sums[1][0] == pytest.approx(sums[8][0], rel=1e-6)
    # Untrained weights give a loss of about the logarithm of the vocabulary.
    assert sums[1][0] / sums[1][1] == pytest.approx(np.log(len(set(TEXT)) + 3), abs=0.3)


def test_it_learns(mesh: Mesh, make_config: Callable[..., JobConfig]):
    step = load_step(make_config({"dropout_prob": 0.0}), mesh)
    weights = step.initial_weights()
    before = step.evaluate(0)[0]
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    for at in range(60):
        slope = compute_gradient(step, at)[1]
        mean += 0.1 * (slope - mean)
        square += 0.01 * (slope**2 - square)
        weights -= 0.01 * (mean / (1 - 0.9 ** (at + 1))) / (np.sqrt(square / (1 - 0.99 ** (at + 1))) + 1e-8)
        load_weights(step, weights)
    assert step.evaluate(0)[0] < 0.6 * before


def test_linear_regression_finds_the_function(mesh: Mesh):
    config = JobConfig(
        model=LinearRegressionConfig(num_features=8, num_targets=4, training_samples=1000),
        batch_size=64,
        validation_batch_size=64,
        optimizer=OptimizerConfig(weight_decay_on="matrices"),
    )
    step = load_step(config, mesh)
    assert [(entry.name, entry.shape, entry.decays) for entry in step.layout.entries] == [
        ("linear.weight", (8, 4), True),
        ("linear.bias", (4,), False),
    ]
    assert step.tokens_per_micro_batch == 64 and step.evaluation_batches == 2
    weights = step.initial_weights()
    for at in range(200):
        weights -= 0.5 * compute_gradient(step, at)[1]
        load_weights(step, weights)
    results = [step.evaluate(index) for index in range(2)]
    assert sum(rows for _, rows in results) == 100
    assert sum(total for total, _ in results) / 100 < 1e-4
    assert step.checkpoint_files().keys() == {"config.json"}


def test_linear_regression_data_parallel(open_emulator: Callable[..., Mesh]):
    config = JobConfig(
        model=LinearRegressionConfig(num_features=8, num_targets=4, training_samples=1000, noise=0.1),
        batch_size=64,
        validation_batch_size=64,
    )
    single = compute_gradient(load_step(config, open_emulator()))
    spread = compute_gradient(load_step(config, open_emulator((1, 8))))
    assert spread[0] == pytest.approx(single[0], rel=1e-6)
    np.testing.assert_allclose(spread[1], single[1], atol=1e-5 * np.abs(single[1]).max())


def as_token_ids(config: JobConfig, folder: Path) -> JobConfig:
    """Return the job with its text as a file of token ids, without a tokenizer."""
    tokenizer = build_character_tokenizer(TEXT)
    path = folder / "ids.bin"
    tokenizer.encode(TEXT).astype("<u2").tofile(path)
    sidecar = describe_token_file(path, "data_path")
    file = CorpusFile(path=str(path), kind="tokens", sha256=sidecar.sha256, identity=sidecar.identity)
    model = config.model.model_copy(update={"vocab_size": tokenizer.size})
    data = DataConfig(files=(file,), tokenizer_type="none", vocab_size=tokenizer.size)
    return config.model_copy(update={"model": model, "data": data})


@pytest.mark.parametrize("replacement", [True, False])
def test_a_text_and_its_token_ids_train_to_the_same_bits(
    mesh: Mesh, make_config: Callable[..., JobConfig], tmp_path: Path, replacement: bool
):
    text = make_config(replacement=replacement)
    token_ids = as_token_ids(text, tmp_path)
    first, second = load_step(text, mesh), load_step(token_ids, mesh)
    assert compute_gradient(first, 3, 1)[1].tobytes() == compute_gradient(second, 3, 1)[1].tobytes()
    assert first.evaluate(1) == second.evaluate(1)
    assert "tokenizer.json" in first.checkpoint_files() and "tokenizer.json" not in second.checkpoint_files()


def test_epochs_go_on_from_micro_batch_to_micro_batch(make_config: Callable[..., JobConfig]):
    """The windows of a step with two micro-batches are those of two steps with one."""
    two = JobData.open(make_config(replacement=False, gradient_accumulation_steps=2))
    one = JobData.open(make_config(replacement=False))
    for step, index in ((0, 0), (0, 1), (5, 1)):
        expected = one.micro_batch(2 * step + index, 0).inputs
        assert np.array_equal(two.micro_batch(step, index).inputs, expected)


def test_an_evaluation_may_take_some_of_the_batches_at_even_distances(
    mesh: Mesh, make_config: Callable[..., JobConfig]
):
    every = load_step(make_config(validation_batch_size=1), mesh)
    some = load_step(make_config(validation_batch_size=1, validation_batches=3), mesh)
    count = every.evaluation_batches
    assert count > 6 and some.evaluation_batches == 3
    assert [some.evaluate(index) for index in range(3)] == [
        every.evaluate(index * count // 3) for index in range(3)
    ]
    assert TrainingStep(make_config(validation_batches=10**5), mesh).evaluation_batches < count


def test_a_vocabulary_may_be_larger_than_the_tokenizer(mesh: Mesh, make_config: Callable[..., JobConfig]):
    step = TrainingStep(make_config({"vocab_size": 96}), mesh)
    assert step.layout.entries[0].shape == (96, 64)
    with pytest.raises(
        Refused, match=r"tokenizer_path: the tokenizer has \d+ tokens, expected at most the 9 of"
    ):
        TrainingStep(make_config({"vocab_size": 9}), mesh)


def test_checkpoint_files(mesh: Mesh, make_config: Callable[..., JobConfig]):
    files = TrainingStep(make_config({"bias": False, "weight_tying": True}), mesh).checkpoint_files()
    config = json.loads(files["config.json"])
    assert config["vocab_size"] == len(set(TEXT)) + 3
    assert config["tie_word_embeddings"] is True
    assert json.loads(files["tokenizer.json"])["model"]["type"] == "WordLevel"
    assert "transformer.h.1.attn.c_attn.bias" in load(files["constants.safetensors"])
    assert "constants.safetensors" not in TrainingStep(make_config(), mesh).checkpoint_files()


def test_the_fingerprint_is_text(mesh: Mesh, make_config: Callable[..., JobConfig]):
    found = TrainingStep(make_config(), mesh).fingerprint()
    assert found["dtype"] == "float32" and all(isinstance(value, str) for value in found.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bits_do_not_depend_on_the_emulator_s_threads(dtype: str, make_config: Callable[..., JobConfig]):
    """Use sizes at which products, batched products, row-wise and element-wise ops are all split into blocks."""
    model = {"num_heads": 4, "embedding_dim": 128, "max_sequence_length": 64}
    results = []
    for threads in (1, 2, 3):
        with open_mesh((1, 1), backend="emulator", dtype=dtype, threads=threads) as mesh:
            loss, out = compute_gradient(load_step(make_config(model, batch_size=32), mesh))
        results.append((loss, out.tobytes()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_non_finite_gradient_is_reported_before_it_is_ready(
    bad: float, mesh: Mesh, make_config: Callable[..., JobConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    read_gradient, faulty = Weights.read_gradient, False

    def read_wrongly(self: Weights, parameter: Parameter, gradient: Tensor) -> Any:
        values = read_gradient(self, parameter, gradient).copy()
        if faulty and parameter.name in names[:2]:
            values[-1] = bad
        return values

    monkeypatch.setattr(Weights, "read_gradient", read_wrongly)
    reported: list[tuple[int, str]] = []
    step = TrainingStep(
        make_config(), mesh, on_non_finite=lambda index, parameter: reported.append((index, parameter))
    )
    load_weights(step, step.initial_weights())
    names = [entry.name for entry in step.layout.entries]
    compute_gradient(step)
    assert reported == []

    def overwrite(offset: int) -> None:
        out[offset:] = 0.0  # as adding other micro-batches would

    faulty = True
    out = np.empty(step.layout.elements, np.float32)
    run_micro_batch(step, 0, 3, out, overwrite)
    ((index, parameter),) = reported
    assert index == 3 and parameter in names[:2], "once a micro-batch"
