"""A model's layout, and the weights that training starts from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.tensors.layout import Layout
from training.autograd.variable import Parameter
from training.models.model import Model
from training.seeds import make_generator


def build_layout(model: Model, *, decay_all: bool) -> Layout:
    """Return the layout of a model's parameters.

    Args:
        model: the model; its parameters need no values.
        decay_all: whether weight decay applies to every parameter; otherwise to matrices only.
    """
    # Every parameter has the shape of the exported tensor, so nothing is transposed.
    return Layout.build(
        (parameter.name, parameter.shape, decay_all or parameter.is_matrix, parameter.export_name, False)
        for parameter in model.parameters()
    )


def draw_initial_value(parameter: Parameter, seed: int) -> npt.NDArray[np.float32]:
    """Return a parameter's initial values, flat; they follow from the job's seed and its name alone."""
    size = int(np.prod(parameter.shape))
    mean = np.float32(parameter.initial_mean)
    if parameter.initial_deviation == 0:
        return np.full(size, mean, np.float32)
    random = np.random.Generator(make_generator(seed, "initial", parameter.name))
    values = random.standard_normal(size, dtype=np.float32)
    values *= np.float32(parameter.initial_deviation)
    values += mean
    return values
