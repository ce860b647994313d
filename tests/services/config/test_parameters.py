"""Names, shapes and numbers of parameters that follow from a config alone are those of the built model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.device import Mesh, open_mesh
from services.config.field_types import MOST_WIDTH
from services.config.job import JobConfig
from services.config.models import (
    CustomConfig,
    GPT2Config,
    LinearRegressionConfig,
    LlamaConfig,
    MLPConfig,
    RegressionConfig,
)
from services.config.parameters import count_parameters, model_parts
from services.protocol.plan import EvaluationBatches, ParameterCount
from training.models.build import build_model
from training.models.initialise import build_layout


@pytest.fixture(scope="module")
def chip() -> Iterator[Mesh]:
    """Open a mesh of one emulated chip."""
    with open_mesh((1, 1), backend="emulator") as mesh:
        yield mesh


@st.composite
def gpt2_configs(draw: st.DrawFn) -> GPT2Config:
    heads = draw(st.integers(1, 4))
    return GPT2Config(
        num_heads=heads,
        embedding_dim=heads * draw(st.integers(1, 40)),
        num_blocks=draw(st.integers(1, 3)),
        max_sequence_length=32 * draw(st.integers(1, 4)),
        weight_tying=draw(st.booleans()),
        positional_embedding_type=draw(st.sampled_from(["trainable", "fixed"])),
        bias=draw(st.booleans()),
    )


@st.composite
def llama_configs(draw: st.DrawFn) -> LlamaConfig:
    groups, shared = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    return LlamaConfig(
        num_heads=groups * shared,
        num_groups=groups,
        embedding_dim=groups * shared * 32 * draw(st.integers(1, 2)),
        intermediate_dim=draw(st.none() | st.integers(1, 300)),
        num_blocks=draw(st.integers(1, 3)),
        weight_tying=draw(st.booleans()),
    )


widths = st.integers(1, 100)
mlp_configs = st.builds(
    MLPConfig,
    input_features=widths,
    hidden_features=st.lists(widths, max_size=4).map(tuple),
    output_features=widths,
    bias=st.booleans(),
)
linear_configs = st.builds(
    LinearRegressionConfig, num_features=widths, num_targets=widths, bias=st.booleans()
)


@given(config=gpt2_configs() | llama_configs() | mlp_configs | linear_configs, vocabulary=st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_parameters_are_those_of_the_built_model(
    chip: Mesh, config: GPT2Config | LlamaConfig | RegressionConfig, vocabulary: int
) -> None:
    model = build_model(config, vocabulary, chip)
    layout = build_layout(model, decay_all=True)
    parts = model_parts(config, vocabulary)
    assert count_parameters(config, vocabulary) == layout.elements
    assert dict(named for part in parts for named in part.tensors()) == {
        entry.export_name: entry.shape for entry in layout.entries
    }
    cuts = {
        part.prefix.format(copy) + name: each.cut
        for part in parts
        for copy in range(part.copies)
        for name, each in part.shapes.items()
    }
    assert cuts == {
        parameter.export_name: parameter.split.dim if parameter.split else None
        for parameter in model.parameters()
    }


def test_a_model_that_only_workers_can_count_has_a_maximum() -> None:
    corpus = {"files": ({"path": "/t", "sha256": "0" * 64},)}
    own = JobConfig.model_validate(
        {"model": {"model_type": "mixer:Mixer", "max_parameters": 1000}, "data": corpus | {"vocab_size": 10}}
    )
    assert own.parameters == ParameterCount(1000, "transformer_config.max_parameters")
    unknown = JobConfig.model_validate({"model": {"model_type": "gpt2"}, "data": corpus})
    largest = count_parameters(unknown.model, MOST_WIDTH)
    assert unknown.parameters.number == largest
    assert "a vocabulary of 1048576 tokens" in str(unknown.parameters.check(1 + (largest or 0)))
    assert unknown.parameters.check(count_parameters(unknown.model, 50_257) or 0) is None


def test_held_out_batches_that_only_workers_can_count_have_a_maximum() -> None:
    corpus = {"files": ({"path": "/t", "sha256": "0" * 64},)}
    job = {"model": {"model_type": "gpt2"}, "data": corpus}
    most = JobConfig.model_validate(job | {"validation_batches": 20}).plan().evaluation_batches
    assert most == EvaluationBatches(20, "training_config.validation_batches") and most.known is None
    assert most.check(1) is None and most.check(20) is None
    for batches in (0, 21):
        assert f"{batches} held-out batches, expected 1 to 20 (training" in str(most.check(batches))
    assert JobConfig.model_validate(job).plan().evaluation_batches == EvaluationBatches()


def test_the_largest_llama_is_counted_without_building_it() -> None:
    config = LlamaConfig(
        num_heads=128, num_groups=8, embedding_dim=16384, intermediate_dim=53248, num_blocks=126
    )
    assert count_parameters(config, 128256) == 405_853_388_800, "as published for Llama 3.1 405B"


def test_a_model_of_the_user_s_own_has_an_unknown_number_of_parameters() -> None:
    assert count_parameters(CustomConfig(model_type="mixer:Mixer"), 100) is None
