"""A Llama in plain PyTorch, written as its users write it. It shares only files with Tiermesh.

    python nanollama.py time SETTING

It runs in an interpreter of its own with torch. SETTING is a JSON file with the model's numbers. For each line on
standard input it does one forward and backward pass and prints its seconds.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate the halves of x [sequences, heads, tokens, width] by each position's angles [tokens, width]."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines


class Block(nn.Module):
    """A transformer block: attention with grouped key-value heads, and a gated feed-forward, each after a norm."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head_width = heads, groups, width // heads
        self.input_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.head_width, bias=False)
        self.v_proj = nn.Linear(width, groups * self.head_width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """Map [sequences, tokens, width] to the same shape."""
        sequences, tokens, width = x.shape
        normal = self.input_layernorm(x)
        query, key, value = (
            projection(normal).view(sequences, tokens, heads, self.head_width).transpose(1, 2)
            for projection, heads in (
                (self.q_proj, self.heads),
                (self.k_proj, self.groups),
                (self.v_proj, self.groups),
            )
        )
        attended = functional.scaled_dot_product_attention(
            rotate(query, cosines, sines), rotate(key, cosines, sines), value, is_causal=True, enable_gqa=True
        )
        x = x + self.o_proj(attended.transpose(1, 2).reshape(sequences, tokens, width))
        normal = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(normal)) * self.up_proj(normal))


class Llama(nn.Module):
    """Llama. Unless `tied`, the projection to the vocabulary has weights of its own."""

    def __init__(
        self,
        vocabulary: int,
        tokens: int,
        width: int,
        heads: int,
        groups: int,
        hidden: int,
        blocks: int,
        theta: float,
        tied: bool,
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, heads, groups, hidden) for _ in range(blocks))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.embed_tokens.weight
        head_width = width // heads
        rates = theta ** (-torch.arange(0, head_width, 2) / head_width)
        angles = torch.outer(torch.arange(tokens), rates).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of [sequences, tokens] ids against the tokens that follow them."""
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        logits = self.lm_head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def time_passes(setting: dict[str, Any]) -> None:
    """Time a forward and backward pass for each line of standard input."""
    torch.set_num_threads(setting["threads"])
    torch.manual_seed(0)
    model = Llama(**setting["model"])
    shape = (setting["sequences"], setting["model"]["tokens"])
    ids, targets = torch.randint(setting["model"]["vocabulary"], (2, *shape))
    for _ in sys.stdin:
        started = time.perf_counter()
        model.zero_grad(set_to_none=True)
        model(ids, targets).backward()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    mode, path = sys.argv[1:]
    {"time": time_passes}[mode](json.loads(Path(path).read_text()))
