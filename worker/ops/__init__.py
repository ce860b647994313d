"""The operations that models are made of, one function each: the value forward, and its gradient on the tape.

Only here (and in mesh/) is the device module called. One sequence of calls per model, whatever the dtype, written for
bfloat16 as ttnn has it. Activations lie as [1, 1, N, width] with N = sequences x tokens of one device: a weight's
product is one matrix product then, and no operation but attention needs another shape.
"""

from __future__ import annotations

from worker.ops.activation import Gelu, gelu, relu, silu
from worker.ops.attention import causal_attention, grouped_attention
from worker.ops.cache import KeyValueCache, Past
from worker.ops.dropout import dropout
from worker.ops.elementwise import add, add_positions, take_rows
from worker.ops.embedding import embedding
from worker.ops.linear import linear
from worker.ops.losses import cross_entropy, squared_error
from worker.ops.normalisation import EPSILON as LAYER_NORM_EPSILON
from worker.ops.normalisation import layer_norm
from worker.ops.placing import gathered, rows_of
from worker.ops.rms_norm import EPSILON as RMS_NORM_EPSILON
from worker.ops.rms_norm import rms_norm
from worker.ops.rotary import Rotation
from worker.ops.swiglu import swiglu
from worker.ops.vocabulary import Vocabulary, token_loss

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
