"""The models that workers can train."""

from __future__ import annotations

from training.models.build import build_model, load_parameter
from training.models.gpt2 import GPT2
from training.models.initialise import initial_value, model_layout
from training.models.linear_regression import LinearRegression
from training.models.llama import Llama
from training.models.mlp import MLP
from training.models.model import Model, TextModel
from training.models.own import blamed

__all__ = [
    "GPT2",
    "MLP",
    "LinearRegression",
    "Llama",
    "Model",
    "TextModel",
    "blamed",
    "build_model",
    "initial_value",
    "load_parameter",
    "model_layout",
]
