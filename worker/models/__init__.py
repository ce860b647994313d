"""The models that workers can train."""

from __future__ import annotations

from worker.models.build import build_model, load_parameter
from worker.models.gpt2 import GPT2
from worker.models.initialise import initial_value, model_layout
from worker.models.linear_regression import LinearRegression
from worker.models.llama import Llama
from worker.models.mlp import MLP
from worker.models.model import Model, TextModel
from worker.models.own import blamed

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
