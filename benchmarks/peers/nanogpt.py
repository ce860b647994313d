"""A GPT in plain PyTorch, written as its users write it. It shares only files with Tiermesh.

    python nanogpt.py MODE SETTING

It runs in an interpreter of its own with torch, numpy and safetensors. SETTING is a JSON file with the numbers of model
and optimizer. The modes are:

    time     one forward and backward pass for each line on standard input; prints its seconds
    losses   train on the batches of an .npz file from the weights of a checkpoint; print the losses as a JSON list
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """A transformer block: attention and feed-forward, each after a norm."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_out = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map [sequences, tokens, width] to the same shape."""
        sequences, tokens, width = x.shape
        query, key, value = (
            part.view(sequences, tokens, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).split(width, dim=2)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.c_proj(attended.transpose(1, 2).contiguous().view(sequences, tokens, width))
        return x + self.c_out(functional.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    """GPT-2 without dropout. With `tied` the projection to the vocabulary is the token embedding."""

    def __init__(
        self, vocabulary: int, tokens: int, width: int, heads: int, blocks: int, bias: bool, tied: bool
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(tokens, width)
        self.h = nn.ModuleList(Block(width, heads, bias) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width, bias=bias)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of [sequences, tokens] ids against the tokens that follow them."""
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def take_weights(self, checkpoint: Path) -> None:
        """Load the weights of a checkpoint in Hugging Face's format, whose GPT-2 has transposed matrices."""
        places = {"c_attn": "attn.c_attn", "c_proj": "attn.c_proj", "c_fc": "mlp.c_fc", "c_out": "mlp.c_proj"}
        stored = load_file(checkpoint / "model.safetensors")
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                *prefix, layer, kind = name.split(".")
                root = [] if layer == "lm_head" else ["transformer"]
                value = stored[".".join([*root, *prefix, places.get(layer, layer), kind])]
                parameter.copy_(value.T if layer in places and kind == "weight" else value)


def build(setting: dict[str, Any]) -> GPT:
    """Build the model of a setting."""
    torch.manual_seed(0)
    return GPT(**setting["model"])


def time_passes(setting: dict[str, Any]) -> None:
    """Time a forward and backward pass for each line of standard input."""
    torch.set_num_threads(setting["threads"])
    model = build(setting)
    shape = (setting["sequences"], setting["model"]["tokens"])
    ids, targets = torch.randint(setting["model"]["vocabulary"], (2, *shape))
    for _ in sys.stdin:
        started = time.perf_counter()
        model.zero_grad(set_to_none=True)
        model(ids, targets).backward()
        print(time.perf_counter() - started, flush=True)


def learning_rate(setting: dict[str, Any], step: int) -> float:
    """Return the learning rate of a step: linear warm-up, then a cosine down to the minimum."""
    highest, lowest, warmup = setting["lr"], setting["min_lr"], setting["warmup_steps"]
    if step < warmup:
        return float(highest * (step + 1) / (warmup + 1))
    ratio = (step - warmup) / (setting["total_steps"] - warmup)
    return float(lowest + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (highest - lowest))


def train(setting: dict[str, Any]) -> None:
    """Train on given batches, [steps, micro-batches, sequences, tokens], and print each step's mean loss."""
    model = build(setting)
    model.take_weights(Path(setting["checkpoint"]))
    batches = np.load(setting["batches"])
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": setting["weight_decay"]},
            {"params": others, "weight_decay": 0.0},
        ],
        lr=setting["lr"],
        betas=(setting["beta1"], setting["beta2"]),
        eps=setting["epsilon"],
    )
    losses = []
    for step, (inputs, targets) in enumerate(zip(batches["inputs"], batches["targets"], strict=True)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(setting, step)
        optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for ids, following in zip(inputs, targets, strict=True):
            loss = model(torch.from_numpy(ids), torch.from_numpy(following)) / len(inputs)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), setting["clip_grad_norm"])
        optimizer.step()
        losses.append(total)
    print(json.dumps(losses))


if __name__ == "__main__":
    mode, path = sys.argv[1:]
    {"time": time_passes, "losses": train}[mode](json.loads(Path(path).read_text()))
