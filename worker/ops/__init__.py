"""The operations that models are made of, one function each: the value forward, and its gradient on the tape.

Only here (and in mesh/) is the device module called. One sequence of calls per model, whatever the dtype, written for
bfloat16 as ttnn has it. Activations lie as [1, 1, N, width] with N = sequences x tokens of one device: a weight's
product is one matrix product then, and no operation but attention needs another shape.
"""

from __future__ import annotations

from worker.ops.activation import Gelu, gelu
from worker.ops.attention import causal_attention
from worker.ops.dropout import dropout
from worker.ops.elementwise import add, add_positions, take_row
from worker.ops.embedding import embedding
from worker.ops.linear import linear
from worker.ops.losses import cross_entropy, squared_error
from worker.ops.normalisation import EPSILON as LAYER_NORM_EPSILON
from worker.ops.normalisation import layer_norm
from worker.ops.placing import gathered, rows_of
from worker.ops.vocabulary import Vocabulary, token_loss

__all__ = [
    "LAYER_NORM_EPSILON",
    "Gelu",
    "Vocabulary",
    "add",
    "add_positions",
    "causal_attention",
    "cross_entropy",
    "dropout",
    "embedding",
    "gathered",
    "gelu",
    "layer_norm",
    "linear",
    "rows_of",
    "squared_error",
    "take_row",
    "token_loss",
]
