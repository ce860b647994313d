"""`ttnn.experimental`: ops whose interface ttnn may still change."""

from __future__ import annotations

from mesh.emulator.attention_heads import nlp_concat_heads, nlp_create_qkv_heads
from mesh.emulator.dropout import dropout
from mesh.emulator.rotary import rotary_embedding, rotary_embedding_hf

__all__ = [
    "dropout",
    "nlp_concat_heads",
    "nlp_create_qkv_heads",
    "rotary_embedding",
    "rotary_embedding_hf",
]
