"""Builds the model of a job's config on a mesh."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import upload, upload_into
from services.config.models import (
    ExternalConfig,
    GPT2Config,
    LinearRegressionConfig,
    LlamaConfig,
    MLPConfig,
    ModelConfig,
)
from services.errors import Refused
from services.pipeline.split import BlockRange
from training.autograd.variable import Parameter
from training.models.custom import build_custom_model, build_custom_range
from training.models.gpt2 import GPT2
from training.models.linear_regression import LinearRegression
from training.models.llama import Llama
from training.models.mlp import MLP
from training.models.model import Model, RangeModel
from training.parameter_placement import choose_placements, place_summand, to_mesh


def build_model(
    config: ModelConfig, vocabulary: int, mesh: Mesh, allowed_models: Collection[str] = ()
) -> Model:
    """Build a model; its parameters have no values yet.

    Args:
        config: config of the model.
        vocabulary: number of tokens; ignored for a model without tokens.
        mesh: the mesh to run on.
        allowed_models: code that may be imported for users' own models, `package.module` or `package.module:Factory`
            each.

    Raises:
        Refused: the device library has no kernels for the sizes, the mesh's devices do not divide them, or a user's
            code is not allowed, can't be imported, or returns no model.
    """
    model = _build(config, vocabulary, mesh, allowed_models)
    _place(model, mesh)
    return model


def _build(config: ModelConfig, vocabulary: int, mesh: Mesh, allowed_models: Collection[str]) -> Model:
    match config:
        case GPT2Config() | LlamaConfig():
            return _build_blocks(config, vocabulary, mesh, BlockRange.whole(config.num_blocks))
        case LinearRegressionConfig():
            return LinearRegression(config)
        case MLPConfig():
            return MLP(config)
        case ExternalConfig():
            raise Refused(
                "training_config.model_type: external: its processes have the model, expected a worker that they join; "
                "start it with --external"
            )
        case _:
            return build_custom_model(config, vocabulary, mesh, allowed_models)


def build_range(
    config: ModelConfig,
    vocabulary: int,
    mesh: Mesh,
    blocks: BlockRange,
    allowed_models: Collection[str] = (),
) -> RangeModel:
    """Build the part of a model that a range of its blocks has; its parameters have no values yet.

    Args:
        config: config of the model.
        vocabulary: number of tokens.
        mesh: the mesh to run on.
        blocks: the range.
        allowed_models: see `build_model`.

    Raises:
        Refused: see `build_model`; or the model has no blocks, or can't be built from a range of them.
    """
    match config:
        case GPT2Config() | LlamaConfig():
            model = _build_blocks(config, vocabulary, mesh, blocks)
        case LinearRegressionConfig() | MLPConfig() | ExternalConfig():
            raise Refused(
                f"transformer_config.model_type: {config.model_type} has no blocks, expected gpt2 or llama for a "
                "pipeline; train it without one"
            )
        case _:
            model = build_custom_range(config, vocabulary, mesh, blocks, allowed_models)
    _place(model, mesh)
    copy = model.tied_copy
    if copy is not None:
        copy.placements = choose_placements(copy, mesh)
        copy.partial_gradient = place_summand(copy, mesh)
    return model


def _build_blocks(
    config: GPT2Config | LlamaConfig, vocabulary: int, mesh: Mesh, blocks: BlockRange
) -> RangeModel:
    if isinstance(config, GPT2Config):
        return GPT2(config, vocabulary, mesh, blocks)
    return Llama(config, vocabulary, mesh, blocks)


def _place(model: Model, mesh: Mesh) -> None:
    for parameter in model.parameters():
        parameter.placements = choose_placements(parameter, mesh)


def load_parameter(mesh: Mesh, parameter: Parameter, values: npt.NDArray[np.float32]) -> None:
    """Put a parameter's values on the mesh, as its placements say and in the mesh's dtype.

    Args:
        mesh: the mesh.
        parameter: the parameter; values that it already has are overwritten in place.
        values: float32, flat, in the order of its logical shape.
    """
    array = to_mesh(parameter, values, mesh)
    if parameter.value is not None:
        upload_into(mesh, parameter.value, array, parameter.placements)
        return
    parameter.value = upload(
        mesh, array, dtype=mesh.dtype, layout=mesh.tt.TILE_LAYOUT, placements=parameter.placements
    )
