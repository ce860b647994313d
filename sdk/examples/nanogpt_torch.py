"""nanoGPT in PyTorch as a worker. Beside each worker of the cluster: python nanogpt_torch.py SOCKET JOB TEXT."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import tiermesh

WIDTH, HEADS, BLOCKS, VOCABULARY = 64, 4, 2, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.ln_1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(tokens, WIDTH)
        self.blocks, self.ln = nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, targets, reduction):
        logits = self.head(self.ln(self.blocks(self.wte(ids) + self.wpe.weight[: ids.shape[1]])))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


socket, job, text, batch_size, tokens = *sys.argv[1:4], 8, 32
torch.manual_seed(0)
torch.set_num_threads(1)  # processes on one host share its cores
model = GPT(tokens)
data = torch.frombuffer(bytearray(Path(text).read_bytes()), dtype=torch.uint8).long()
parts = {"train": data[: len(data) * 9 // 10], "evaluate": data[len(data) * 9 // 10 :]}
with tiermesh.join(socket, job=job, parameters=model, fingerprint="nanogpt-torch-1") as run:
    for work in run:
        part, random = parts[work.kind], torch.Generator().manual_seed(work.seed)
        starts = torch.randint(len(part) - tokens, (batch_size, 1), generator=random)
        windows = part[starts + torch.arange(tokens + 1)]
        if work.kind == "train":
            loss = model(windows[:, :-1], windows[:, 1:], "mean")
            loss.backward()
            work.done(loss.item())
        else:
            with torch.no_grad():
                work.done(model(windows[:, :-1], windows[:, 1:], "sum").item(), count=batch_size * tokens)
