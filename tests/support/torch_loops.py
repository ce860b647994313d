"""Loops of PyTorch that join, in an environment with PyTorch: `python torch_loops.py NUMBER`.

NUMBER is the descriptor of a socket on which orders come: the name of a loop, with the socket by which it is to join.
The reply is a JSON object: what the loop has seen, or what it has raised.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import tiermesh
from tiermesh import own_loop, wire

After = Callable[[nn.Module, tiermesh.Work], object]
"""What a loop does after a backward pass, before `done`."""


def make_model(seed: int = 0) -> Any:
    """Return a model with a tied parameter."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
    )
    model[2].weight = model[0].weight
    return model


def make_normed() -> Any:
    """Return a model whose buffers change in training."""
    return nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))


class Unused(nn.Module):
    """A model with parameters that the loss does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Leave `other` out."""
        return self.last(self.first(inputs))


class Sparse(nn.Module):
    """A model whose gradient is sparse."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4, sparse=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Look up."""
        return self.embedding(inputs[:, 0].abs().long().clamp(max=4))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    """Return the mean loss of a micro-batch that follows from its seed."""
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(seed))
    return (model(inputs) - 1).square().mean()


def nothing(model: Any, work: tiermesh.Work) -> None:
    """Do nothing."""


def train(model: Any, after: After = nothing, late: After = nothing, **options: Any) -> dict[str, Any]:
    """Train until the daemon closes, and return what was seen. `late` is called after `done`."""
    places: set[int] = set()
    first = next(model.parameters())
    seen: dict[str, Any] = {"done": [], "grads": 0}
    try:
        with tiermesh.join("", job="job-1", **{"parameters": model, **options}) as run:
            for work in run:
                if work.kind == "train":
                    loss = loss_of(model, work.seed)
                    loss.backward()
                    after(model, work)
                    seen["done"].append(work.done(loss))
                    seen["grads"] += sum(each.grad is not None for each in model.parameters())
                    places.add(first.data_ptr())
                    late(model, work)
                else:
                    with torch.no_grad():
                        work.done(8 * loss_of(model, work.seed).item(), count=8)
    except tiermesh.Unreachable:
        pass
    return {
        **seen,
        "places": len(places),
        "is_apart": first.data_ptr() not in places,
        "weight": first[0, 0].item(),
    }


def train_alone() -> dict[str, Any]:
    """Return the gradient of a micro-batch that plain PyTorch computes with the same weights."""
    model = make_model()
    with tiermesh.join("", job="job-1", parameters=make_model(1)) as run:
        work = next(run)
        values = {name: torch.from_numpy(value.copy()) for name, value in work.weights.items()}
        model.load_state_dict(values, strict=False)
        loss_of(model, work.seed).backward()
    return {"gradient": [each for value in model.parameters() for each in value.grad.flatten().tolist()]}


def train_with_data_loader() -> dict[str, Any]:
    """Train with a DataLoader whose workers fork while the loop has joined."""

    class Data(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((4,), float(index))

    model = make_model()
    loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    with tiermesh.join("", job="job-1", parameters=model) as run:
        work = next(run)
        batches = list(loader)
        loss = (model(batches[0]) - 1).square().mean()
        loss.backward()
        work.done(loss)
    return {"batches": len(batches)}


def step_optimizer(model: Any, work: tiermesh.Work) -> None:
    """Do what a loop must not do."""
    with torch.no_grad():
        model[3].bias.sub_(1.0)


def replace_data(model: Any, work: tiermesh.Work) -> None:
    """Give a parameter other memory."""
    model[3].bias.data = torch.zeros(2)


def step_late(model: Any, work: tiermesh.Work) -> None:
    """Compute gradients when the work is done."""
    work.done(1.0)
    loss_of(model, 1).backward()


def train_by_name() -> dict[str, Any]:
    """Train parameters that are given by name."""
    model = make_model()
    return train(model, parameters=dict(model.named_parameters()))


LOOPS: dict[str, Callable[[], dict[str, Any]]] = {
    "train": lambda: train(make_model()),
    "alone": train_alone,
    "data_loader": train_with_data_loader,
    "by_name": train_by_name,
    "unused": lambda: train(Unused()),
    "unused_zero": lambda: train(Unused(), unused="zero"),
    "step": lambda: train(make_model(), step_optimizer),
    "step_after": lambda: train(make_model(), late=step_optimizer),
    "data": lambda: train(make_model(), replace_data),
    "backward_twice": lambda: train(make_model(), lambda model, work: loss_of(model, 1).backward()),
    "backward_late": lambda: train(make_model(), step_late),
    "gradients": lambda: train(make_model(), lambda model, work: work.done(1.0, gradients={})),
    "sparse": lambda: train(Sparse()),
    "normed": lambda: train(make_normed()),
    "normed_local": lambda: train(make_normed(), buffers="local"),
    "double": lambda: train(make_model().double()),
    "frozen": lambda: train(make_model().requires_grad_(False)),
    "empty": lambda: train(make_model(), parameters=nn.Tanh()),
    "mixed": lambda: train(make_model(), parameters={"a": nn.Parameter(torch.ones(2)), "b": 3}),
}


def main() -> None:
    """Run loops, one after another."""
    torch.set_num_threads(1)
    orders = socket.socket(fileno=int(sys.argv[1]))
    while True:
        name, descriptors, _, _ = socket.recv_fds(orders, 100, 1)
        if not name:
            return
        end = wire.Channel(socket.socket(fileno=descriptors[0]))
        vars(own_loop)["connect"] = lambda path, end=end: end
        try:
            result = LOOPS[name.decode()]()
        except tiermesh.TiermeshError as error:
            result = {"error": type(error).__name__, "field": error.field, "text": str(error)}
        finally:
            end.close()
        orders.sendall(json.dumps(result).encode() + b"\n")


if __name__ == "__main__":
    main()
