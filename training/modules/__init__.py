"""Building blocks of models: named parameters, and the operations that use them."""

from __future__ import annotations

from training.modules.attention import CausalSelfAttention
from training.modules.feed_forward import FeedForward
from training.modules.gated_feed_forward import GatedFeedForward
from training.modules.gpt2_block import GPT2Block
from training.modules.grouped_attention import GroupedAttention
from training.modules.layer_norm import LayerNorm
from training.modules.linear import Linear
from training.modules.llama_block import LlamaBlock
from training.modules.rms_norm import RMSNorm

__all__ = [
    "CausalSelfAttention",
    "FeedForward",
    "GPT2Block",
    "GatedFeedForward",
    "GroupedAttention",
    "LayerNorm",
    "Linear",
    "LlamaBlock",
    "RMSNorm",
]
