"""A training loop of nanoGPT in PyTorch, as its users write it: of a Tiermesh worker, or of a rank of DDP.

    python own_loop.py MODE SETTING

It runs in an interpreter of its own with torch, numpy, safetensors and httpx2, and finds the package tiermesh.
SETTING is JSON. The modes are:

    join    compute the gradients of a job at the socket of a worker
    paced   the same with passes that are pauses, as those of paced_step_worker.py; it waits for no turn
    ddp     be a rank of DistributedDataParallel over gloo

The others print a line when a step may begin, and begin it when they read one.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import torch

import tiermesh
from benchmarks.peers.nanogpt import GPT


def batch(setting: dict[str, Any], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and targets of a micro-batch."""
    shape = (setting["sequences"], setting["model"]["tokens"] + 1)
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(setting["model"]["vocabulary"], shape, generator=random)
    return ids[:, :-1], ids[:, 1:]


def wait_turn() -> bool:
    """Say that a step may begin, and wait for it; return False at the end of the figure."""
    print("ready", flush=True)
    return bool(sys.stdin.readline())


def join(setting: dict[str, Any], model: GPT) -> None:
    """Compute what the worker is leased."""
    step = -1
    with tiermesh.join(setting["socket"], job=setting["job"], parameters=model, fingerprint="bench") as run:
        for work in run:
            if work.step != step:
                step = work.step
                if not wait_turn():
                    return
            loss = model(*batch(setting, work.seed))
            loss.backward()
            work.done(loss.item())


class Pause(torch.autograd.Function):
    """A layer whose passes are pauses, and whose parameter's gradient is there already."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, parameter: torch.Tensor, gradient: torch.Tensor, seconds: float
    ) -> torch.Tensor:
        """Pause."""
        ctx.gradient, ctx.seconds = gradient, seconds
        time.sleep(seconds)
        return x + 0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        """Pause twice as long."""
        time.sleep(2 * ctx.seconds)
        return gradient, ctx.gradient.detach(), None, None


def paced(setting: dict[str, Any], model: GPT) -> None:
    """Compute what the worker is leased, in given times."""
    parameters = dict(model.named_parameters())
    elements = {
        name: value.numel() * (value.dim() >= 2 and "wte" not in name and "wpe" not in name)
        for name, value in parameters.items()
    }
    whole = sum(elements.values())
    device = torch.full((max(value.numel() for value in parameters.values()),), 1e-3)
    gradients = {name: device[: value.numel()].view_as(value) for name, value in parameters.items()}
    with tiermesh.join(setting["socket"], job=setting["job"], parameters=model, fingerprint="bench") as run:
        for work in run:
            x = torch.zeros(1, requires_grad=True)
            loss = x
            for name, value in parameters.items():
                seconds = setting["forward_seconds"] * elements[name] / whole
                loss = Pause.apply(loss, value, gradients[name], seconds)
            loss.backward()
            work.done(0.0)


def ddp(setting: dict[str, Any], model: GPT) -> None:
    """Make steps of the rank's micro-batches, as nanoGPT does."""
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{setting['rendezvous']}",
        rank=setting["rank"],
        world_size=setting["ranks"],
    )
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    matrices = [each for each in model.parameters() if each.dim() >= 2]
    others = [each for each in model.parameters() if each.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    own = setting["micro_batches"] // setting["ranks"]
    step = 0
    while wait_turn():
        optimizer.zero_grad(set_to_none=True)
        for index in range(own):
            with parallel.no_sync() if index < own - 1 else contextlib.nullcontext():
                seed = (step * setting["ranks"] + setting["rank"]) * own + index
                loss = parallel(*batch(setting, seed)) / own
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1


if __name__ == "__main__":
    mode, text = sys.argv[1:]
    given = json.loads(text)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    {"join": join, "paced": paced, "ddp": ddp}[mode](given, GPT(**given["model"]))
