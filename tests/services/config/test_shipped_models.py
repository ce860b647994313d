"""Each model that ships has as many parameters as its config says, whatever mesh it is built on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh
from services.config.job import JobConfig
from services.config.job_parts import CorpusFile, DataConfig
from services.config.models import GPT2Config, LlamaConfig
from services.config.resolve.model import resolve_model
from services.config.sections import TrainingSection, parse_section
from services.protocol.plan import ParameterCount
from training.models.build import build_model
from training.models.initialise import build_layout

MODEL_CONFIGS = Path(__file__).parents[3] / "configs" / "model_configs"
VOCABULARY = 1001
"""No multiple of a tile or of the chips, so that the mesh pads it."""


@pytest.fixture(scope="module", params=["whole", "split"])
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    """Open a mesh of one chip, and one whose chips share layers and tables."""
    split = request.param == "split"
    axes = Axes(tensor=1) if split else Axes()
    with open_mesh((1, 2 if split else 1), backend="emulator", axes=axes) as mesh:
        yield mesh


@pytest.mark.parametrize("path", sorted(MODEL_CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_each_model_that_ships_has_the_stated_size(mesh: Mesh, path: Path) -> None:
    training = parse_section({}, "training_config", TrainingSection)
    sections = yaml.safe_load(path.read_text())
    if "mlp_config" in sections:
        sections["mlp_config"]["training_samples"] = 1000  # a job says it
    model = resolve_model(sections, training, path.parent).model
    is_language = isinstance(model, GPT2Config | LlamaConfig)
    data = DataConfig(files=(CorpusFile(path="/t", sha256="0" * 64),), vocab_size=VOCABULARY)
    job = JobConfig(model=model, data=data if is_language else None)
    stored = getattr(model, "vocab_size", None)
    layout = build_layout(build_model(model, stored or VOCABULARY, mesh), decay_all=True)
    assert job.parameters == ParameterCount(layout.elements, "")
