"""The models that workers can train.

Read model.py first, the interface of a model. Then read gpt2.py with language.py, a whole model, and build.py, which
builds a model from a config. custom.py builds users' own models.
"""

from __future__ import annotations

from training.models.build import build_model, load_parameter
from training.models.custom import name_own_model_in_errors
from training.models.gpt2 import GPT2
from training.models.initialise import build_layout, draw_initial_value
from training.models.linear_regression import LinearRegression
from training.models.llama import Llama
from training.models.mlp import MLP
from training.models.model import Model, TextModel

__all__ = [
    "GPT2",
    "MLP",
    "LinearRegression",
    "Llama",
    "Model",
    "TextModel",
    "build_layout",
    "build_model",
    "draw_initial_value",
    "load_parameter",
    "name_own_model_in_errors",
]
