"""A model's layout, and the weights that training starts from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.tensors.layout import Layout
from training.autograd import Parameter
from training.models.model import Model
from training.seeds import generator


def model_layout(model: Model, *, decay_all: bool) -> Layout:
    """The layout of a model's parameters.

    Args:
        model: in any state.
        decay_all: whether weight decay applies to every parameter, or to matrices only.
    """
    # Every matrix lies as Hugging Face's GPT-2 has it ([inputs, outputs]; embeddings [ids, width]): no transposes.
    return Layout.build(
        (parameter.name, parameter.shape, decay_all or parameter.is_matrix, parameter.export_name, False)
        for parameter in model.parameters()
    )


def initial_value(parameter: Parameter, seed: int) -> npt.NDArray[np.float32]:
    """What a parameter starts from, flat; it follows from the job's seed and the parameter's name alone."""
    size = int(np.prod(parameter.shape))
    mean = np.float32(parameter.initial_mean)
    if parameter.initial_deviation == 0:
        return np.full(size, mean, np.float32)
    random = np.random.Generator(generator(seed, "initial", parameter.name))
    values = random.standard_normal(size, dtype=np.float32)
    values *= np.float32(parameter.initial_deviation)
    values += mean
    return values
