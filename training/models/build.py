"""Builds the model of a job's config on a mesh."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import upload, upload_into
from services.config.models import GPT2Config, LinearRegressionConfig, LlamaConfig, MLPConfig, ModelConfig
from training.autograd.variable import Parameter
from training.models.custom import build_custom_model
from training.models.gpt2 import GPT2
from training.models.linear_regression import LinearRegression
from training.models.llama import Llama
from training.models.mlp import MLP
from training.models.model import Model
from training.parameter_placement import choose_placements, to_mesh


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
    for parameter in model.parameters():
        parameter.placements = choose_placements(parameter, mesh)
    return model


def _build(config: ModelConfig, vocabulary: int, mesh: Mesh, allowed_models: Collection[str]) -> Model:
    match config:
        case GPT2Config():
            return GPT2(config, vocabulary, mesh)
        case LlamaConfig():
            return Llama(config, vocabulary, mesh)
        case LinearRegressionConfig():
            return LinearRegression(config)
        case MLPConfig():
            return MLP(config)
        case _:
            return build_custom_model(config, vocabulary, mesh, allowed_models)


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
