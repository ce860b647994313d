"""The operations that models are made of: one function each, which computes a value and records its gradient.

Only this package and mesh/ call the device module. Each model is one sequence of calls for every dtype, written for
bfloat16 as ttnn has it. Activations have the shape [1, 1, N, width], where N = sequences x tokens of one device. So
the product with a weight is a single matrix product, and no operation except attention needs another shape.

Read linear.py first, then placing.py (how operands lie on the mesh) and precision.py. attention.py builds on heads.py,
rotary.py and cache.py; vocabulary.py on losses.py.
"""

from __future__ import annotations

from training.ops.activation import Gelu, gelu, relu, silu, swiglu
from training.ops.attention import causal_attention, grouped_attention
from training.ops.cache import KeyValueCache, Past
from training.ops.dropout import dropout
from training.ops.elementwise import add, add_positions, take_rows
from training.ops.embedding import embedding
from training.ops.linear import linear
from training.ops.losses import cross_entropy, squared_error
from training.ops.normalisation import LAYER_NORM_EPSILON, layer_norm
from training.ops.placing import gathered, rows_of
from training.ops.rms_norm import RMS_NORM_EPSILON, rms_norm
from training.ops.rotary import Rotation
from training.ops.vocabulary import Vocabulary, token_loss

__all__ = [
    "LAYER_NORM_EPSILON",
    "RMS_NORM_EPSILON",
    "Gelu",
    "KeyValueCache",
    "Past",
    "Rotation",
    "Vocabulary",
    "add",
    "add_positions",
    "causal_attention",
    "cross_entropy",
    "dropout",
    "embedding",
    "gathered",
    "gelu",
    "grouped_attention",
    "layer_norm",
    "linear",
    "relu",
    "rms_norm",
    "rows_of",
    "silu",
    "squared_error",
    "swiglu",
    "take_rows",
    "token_loss",
]
