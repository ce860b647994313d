"""The worked examples of own-model.md and ops.md run and learn, and their errors name the user's code."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh
from mesh.transfer import download
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.load import load_job
from services.config.models import CustomConfig
from services.config.pipeline import PipelineConfig
from services.errors import Failed, Refused
from tests.support.micro_batch import run_micro_batch
from tests.support.ranges import Ranges
from training.api import Parameter, Tape, Tensor, Variable
from training.models.build import (
    load_parameter,
)
from training.models.model import constant
from training.ops.losses import squared_error
from training.step import TrainingStep

DOCS = Path(__file__).parents[2] / "docs"
TEXT = "".join(f"{number} and {number} are {2 * number}.\n" for number in range(400))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the pages' modules importable for one test."""
    for name in ("mixing", "mixer", "split"):
        monkeypatch.delitem(sys.modules, name, raising=False)  # another test's
    before = set(sys.modules)
    (tmp_path / "mixing.py").write_text(blocks("internals/ops.md", "python")[0])
    (tmp_path / "mixer.py").write_text(blocks("use/own-model.md", "python")[0])
    (tmp_path / "split.py").write_text(blocks("use/own-model.md", "python")[1])
    (tmp_path / "text.txt").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    with open_mesh((1, 1), backend="emulator") as mesh:
        yield mesh


def job(folder: Path, model_type: str = "mixer:Mixer", **options: Any) -> JobConfig:
    sha256 = hashlib.sha256(TEXT.encode()).hexdigest()
    options = {"width": 64, "layers": 2, **options}
    return JobConfig(
        model=CustomConfig(model_type=model_type, max_sequence_length=64, options=options),
        data=DataConfig(files=(CorpusFile(path=str(folder / "text.txt"), sha256=sha256),)),
        batch_size=8,
        validation_batch_size=8,
    )


def put(step: TrainingStep, weights: Any) -> None:
    for index, entry in enumerate(step.layout.entries):
        step.load(index, weights[entry.offset : entry.stop])


def gradient(step: TrainingStep, at: int = 0) -> tuple[float, Any]:
    out = np.full(step.layout.elements, np.nan, np.float32)
    return run_micro_batch(step, at, 0, out), out


def test_the_example_is_short():
    assert len(blocks("use/own-model.md", "python")[0].splitlines()) < 60


def test_the_example_learns(folder: Path, mesh: Mesh):
    step = TrainingStep(job(folder), mesh, allowed_models=["mixer"])
    weights = step.initial_weights()
    mean, square = np.zeros_like(weights), np.zeros_like(weights)
    losses = []
    for at in range(40):
        put(step, weights)
        loss, slope = gradient(step, at)
        losses.append(loss)
        mean += 0.1 * (slope - mean)
        square += 0.01 * (slope**2 - square)
        weights -= 0.01 * (mean / (1 - 0.9 ** (at + 1))) / (np.sqrt(square / (1 - 0.99 ** (at + 1))) + 1e-8)
    assert losses[0] == pytest.approx(np.log(len(set(TEXT)) + 3), abs=0.3)
    assert losses[-1] < 0.6 * losses[0]
    total, rows = step.evaluate(0)
    assert total / rows < 0.7 * losses[0]
    assert step.checkpoint_files().keys() == {"config.json", "tokenizer.json"}


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((1, 8), Axes(data=1)),
        ((1, 2), Axes(tensor=1)),
        ((2, 1), Axes(data=0, shard_parameters=True)),
        ((2, 2), Axes(data=0, tensor=1, shard_parameters=True)),
    ],
    ids=str,
)
def test_the_example_trains_under_every_strategy(folder: Path, shape: tuple[int, int], axes: Axes):
    found = []
    for one_shape, one_axes in (((1, 1), Axes()), (shape, axes)):
        with open_mesh(one_shape, backend="emulator", axes=one_axes) as mesh:
            step = TrainingStep(job(folder), mesh, allowed_models=["mixer:Mixer"])
            put(step, step.initial_weights())
            found.append((step.layout, gradient(step)))
    (layout, (loss, expected)), (_, (spread_loss, spread)) = found
    assert spread_loss == pytest.approx(loss, rel=1e-6)
    for entry in layout.entries:
        ours, theirs = (values[entry.offset : entry.stop] for values in (spread, expected))
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max(), entry.name


@pytest.mark.parametrize("lengths", [(1, 2), (1, 1, 1)])
def test_the_split_example_gives_the_whole_model_s_bits(folder: Path, mesh: Mesh, lengths: tuple[int, ...]):
    config = job(folder, "split:SplitMixer", num_blocks=3, layers=3)
    step = TrainingStep(config, mesh, allowed_models=["split"])
    put(step, step.initial_weights())
    loss, expected = gradient(step)
    pipeline = PipelineConfig(blocks_per_stage=lengths)
    config = config.model_copy(update={"pipeline": pipeline})
    split = TrainingStep(config, dict.fromkeys(range(len(lengths)), mesh), allowed_models=["split"])
    put(split, split.initial_weights())
    found = gradient(split)
    assert found[0] == loss and found[1].tobytes() == expected.tobytes()
    assert split.evaluate(0) == step.evaluate(0)


def test_own_models_that_can_not_be_split_are_refused_by_name(folder: Path, mesh: Mesh):
    with pytest.raises(
        Refused, match=r"mixer:Mixer: Mixer does not take 4 arguments.* or remove the pipeline"
    ):
        Ranges(job(folder), mesh, (1, 1), allowed_models=["mixer"])
    (folder / "other.py").write_text(
        """
from split import SplitMixer

class Bare(SplitMixer):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        del self.tied_copy

class All(SplitMixer):
    def parameters(self):
        yield self.ends.embedding
        for layer in self.layers:
            yield from layer.parameters()
"""
    )
    for name, reason in (
        (
            "Bare",
            "other:Bare: Bare returned a Bare without tied_copy, expected a model with parameters, loss",
        ),
        ("All", "other:All, blocks 1 to 1: parameter layers.1.mix_norm.weight, expected layers.0."),
    ):
        config = job(folder, f"other:{name}", num_blocks=2)
        with pytest.raises(Refused, match=re.escape(reason)):
            Ranges(config, mesh, (1, 1), allowed_models=["other"])


def test_activations_that_devices_share_do_not_leave_a_range(folder: Path):
    (folder / "other.py").write_text(
        """
from split import SplitMixer

class Columns(SplitMixer):
    def run_blocks(self, tape, entering):
        return self.layers[-1].expand(tape, super().run_blocks(tape, entering))
"""
    )
    config = job(folder, "other:Columns", num_blocks=2)
    with open_mesh((1, 2), backend="emulator", axes=Axes(tensor=1)) as mesh:
        ranges = Ranges(config, mesh, (1, 1), allowed_models=["other"])
        ranges.load()
        with pytest.raises(
            Failed, match=r"model other:Columns: ValueError: run_blocks: .* tensor sharded\(3\)"
        ):
            ranges.forward(0, 0)


def test_the_operation_has_the_right_gradient(folder: Path, mesh: Mesh):
    causal_mix = import_module("mixing").causal_mix
    tokens, width = 32, 40
    random = np.random.default_rng(4)
    values = {"x": random.standard_normal((3 * tokens, width)), "w": random.standard_normal((tokens, tokens))}
    wanted = random.standard_normal((3 * tokens, width)).astype(np.float32)

    def plain(x: Any, w: Any) -> Any:
        mixed = np.tril(w) @ x.reshape(3, tokens, width)
        return ((mixed.reshape(x.shape) - wanted) ** 2).mean(axis=1)

    parameters = {
        "x": Parameter("x", (3 * tokens, width), export_name="x"),
        "w": Parameter("w", (tokens, tokens), export_name="w"),
    }
    for name, parameter in parameters.items():
        load_parameter(mesh, parameter, values[name].astype(np.float32).reshape(-1))
    tape = Tape(mesh)
    targets: Variable = constant(mesh, wanted[None, None], mesh.tt.float32)
    loss = squared_error(tape, causal_mix(tape, parameters["x"], parameters["w"]), targets)
    np.testing.assert_allclose(download(mesh, loss.value).reshape(-1), plain(**values), rtol=1e-4)
    gradients: dict[str, Any] = {}

    def take(parameter: Parameter, gradient: Tensor) -> None:
        gradients[parameter.name] = download(mesh, gradient).reshape(parameter.shape)

    tape.backward(loss, 1.0, take)
    for name, value in values.items():
        direction = random.standard_normal(value.shape)
        above, below = (plain(**{**values, name: value + sign * 1e-6 * direction}).sum() for sign in (1, -1))
        assert (gradients[name] * direction).sum() == pytest.approx((above - below) / 2e-6, rel=1e-3), name


def test_the_job_config_of_the_page_is_accepted(folder: Path):
    model = yaml.safe_load(blocks("use/own-model.md", "yaml")[0])
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**model, "training_config": {"data_path": "text.txt"}}))
    config = load_job(path)[0]
    assert isinstance(config.model, CustomConfig)
    assert config.model.options == {"width": 64, "layers": 2} and config.model.max_sequence_length == 64


BROKEN: dict[str, tuple[str, str]] = {
    "no such module": (
        "absent:Model",
        "absent can't be imported on this worker .ModuleNotFoundError: .*absent",
    ),
    "a module that breaks": (
        "broken:Model",
        r"broken can't be .*ZeroDivisionError.*at broken\.py:1\); install",
    ),
    "no such factory": ("mixer:Blender", "mixer has no function or class Blender"),
    "no callable": ("other:NUMBER", "other has no function or class NUMBER"),
    "a factory that breaks": ("other:fails", r"fails failed \(KeyError: 'depth', at other\.py:\d+\); fix"),
    "no model": ("other:number", "number returned a int without parameters, loss, hugging_face_config"),
    "no parameters": ("other:Empty", r"parameters\(\) yielded none"),
    "other parameters": ("other:Arrays", r"parameters\(\) yielded a list, expected training\.api\.Parameter"),
    "one name twice": ("other:Twice", "two parameters are named layers.0.mix"),
}


def write_broken(folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "other.py").write_text(
        """
from mixer import Mixer
from training.api import Parameter

NUMBER = 3

def fails(options, vocabulary, mesh):
    return options["depth"]

def number(options, vocabulary, mesh):
    return 7

class Empty(Mixer):
    def parameters(self):
        return iter(())

class Arrays(Mixer):
    def parameters(self):
        yield [1, 2]

class Twice(Mixer):
    def parameters(self):
        yield from super().parameters()
        yield self.layers[0].mix

class Unused(Mixer):
    def parameters(self):
        yield from super().parameters()
        yield self.spare

    def __init__(self, options, vocabulary, mesh):
        super().__init__(options, vocabulary, mesh)
        self.spare = Parameter("spare", (3, 3), export_name="spare")

class Falls(Mixer):
    def loss(self, tape, inputs, targets):
        raise IndexError("no such token\\nat all")
"""
    )


@pytest.mark.parametrize("case", BROKEN)
def test_a_model_that_cannot_be_built_is_refused_in_one_line(folder: Path, mesh: Mesh, case: str):
    write_broken(folder)
    model_type, message = BROKEN[case]
    with pytest.raises(
        Refused, match=rf"^transformer_config\.model_type: {model_type}: .*{message}"
    ) as refused:
        TrainingStep(job(folder, model_type), mesh, allowed_models=[model_type])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("other:Unused", "no gradient of spare: parameters.. lists it, but the loss does not use it"),
        ("other:Falls", r"IndexError: no such token \| at all, at other\.py:\d+"),
    ],
)
def test_an_error_in_a_pass_names_the_module(folder: Path, mesh: Mesh, model_type: str, message: str):
    write_broken(folder)
    step = TrainingStep(job(folder, model_type), mesh, allowed_models=["other"])
    put(step, step.initial_weights())
    with pytest.raises(Failed, match=rf"^model {model_type}: .*{message}") as failed:
        gradient(step)
    assert "\n" not in str(failed.value)


@pytest.mark.parametrize("allowed", [[], ["mix"], ["mixer:Other", "mixer.inner"]])
def test_a_module_that_is_not_allowed_is_not_imported(folder: Path, mesh: Mesh, allowed: list[str]):
    with pytest.raises(Refused, match=r"mixer:Mixer: not allowed on this worker.*--allow-models mixer"):
        TrainingStep(job(folder), mesh, allowed_models=allowed)
    assert "mixer" not in sys.modules
