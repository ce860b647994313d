"""Building blocks of models: parameters with their names, and the operations that use them."""

from __future__ import annotations

from worker.modules.attention import CausalSelfAttention
from worker.modules.block import Block
from worker.modules.feed_forward import FeedForward
from worker.modules.layer_norm import LayerNorm
from worker.modules.linear import Linear

__all__ = ["Block", "CausalSelfAttention", "FeedForward", "LayerNorm", "Linear"]
