"""Building blocks of models: parameters with their names, and the operations that use them."""

from __future__ import annotations

from worker.modules.attention import CausalSelfAttention
from worker.modules.block import Block
from worker.modules.feed_forward import FeedForward
from worker.modules.gated_feed_forward import GatedFeedForward
from worker.modules.grouped_attention import GroupedAttention
from worker.modules.layer_norm import LayerNorm
from worker.modules.linear import Linear
from worker.modules.llama_block import LlamaBlock
from worker.modules.rms_norm import RMSNorm

__all__ = [
    "Block",
    "CausalSelfAttention",
    "FeedForward",
    "GatedFeedForward",
    "GroupedAttention",
    "LayerNorm",
    "Linear",
    "LlamaBlock",
    "RMSNorm",
]
