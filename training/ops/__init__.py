"""The operations that models are made of, one function each: the value forward, and its gradient on the tape.

Only here (and in mesh/) is the device module called. One sequence of calls per model, whatever the dtype, written for
bfloat16 as ttnn has it. Activations lie as [1, 1, N, width] with N = sequences x tokens of one device: a weight's
product is one matrix product then, and no operation but attention needs another shape.
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
from training.ops.normalisation import EPSILON as LAYER_NORM_EPSILON
from training.ops.normalisation import layer_norm
from training.ops.placing import gathered, rows_of
from training.ops.rms_norm import EPSILON as RMS_NORM_EPSILON
from training.ops.rms_norm import rms_norm
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
