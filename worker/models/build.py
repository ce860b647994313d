"""From a job's model config to a model on a mesh."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mesh.device import Mesh
from mesh.transfer import refill, upload
from services.config import GPT2Config, LinearRegressionConfig, LlamaConfig
from worker.autograd import Parameter
from worker.models.gpt2 import GPT2
from worker.models.linear_regression import LinearRegression
from worker.models.llama import Llama
from worker.parallel import placements_of, to_mesh


def build_model(
    config: GPT2Config | LlamaConfig | LinearRegressionConfig, vocabulary: int, mesh: Mesh
) -> GPT2 | Llama | LinearRegression:
    """The model, its parameters without values yet.

    Args:
        config: of the model.
        vocabulary: tokens of the tokenizer; not read for a model without one.
        mesh: to run on.

    Raises:
        Refused: sizes that the device library has no kernels for, or that the mesh's devices don't divide.
    """
    model: GPT2 | Llama | LinearRegression
    if isinstance(config, GPT2Config):
        model = GPT2(config, vocabulary, mesh)
    elif isinstance(config, LlamaConfig):
        model = Llama(config, vocabulary, mesh)
    else:
        model = LinearRegression(config, mesh)
    for parameter in model.parameters():
        parameter.placements = placements_of(parameter, mesh)
    return model


def load_parameter(mesh: Mesh, parameter: Parameter, values: npt.NDArray[np.float32]) -> None:
    """Put a parameter's value on the mesh, laid out as its placements say, in the mesh's dtype.

    Args:
        mesh: to put it on.
        parameter: to give a value; a former one is overwritten where it lies.
        values: float32, flat, in the order of its logical shape.
    """
    array = to_mesh(parameter, values, mesh)
    if parameter.value is not None:
        refill(mesh, parameter.value, array, parameter.placements)
        return
    parameter.value = upload(
        mesh, array, dtype=mesh.dtype, layout=mesh.tt.TILE_LAYOUT, placements=parameter.placements
    )
