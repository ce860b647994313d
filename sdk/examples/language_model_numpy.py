"""A GPT of one block in numpy, with gradients by hand, as a worker: python language_model_numpy.py SOCKET JOB TEXT.

Arrays are [sample, token, feature]; `d_x` is the gradient of the mean loss by `x`.
"""

import sys
from pathlib import Path

import numpy as np

import tiermesh

WIDTH, VOCABULARY, BATCH, TOKENS = 64, 256, 8, 32
SHAPES = {"embedding": (VOCABULARY, WIDTH), "position": (TOKENS, WIDTH), "qkv": (WIDTH, 3 * WIDTH)}
SHAPES |= {"out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}


def norm(x):
    """Return `x` over its root mean square, and what turns the gradient by that into the one by `x`."""
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    y = x * scale
    return y, lambda d_y: scale * (d_y - y * (d_y * y).mean(-1, keepdims=True))


def softmax(x):
    exponents = np.exp(x - x.max(-1, keepdims=True))
    return exponents / exponents.sum(-1, keepdims=True)


def compute(w, ids, targets):
    """Return the loss of each target, and the gradients of their mean."""
    x = w["embedding"][ids] + w["position"]
    a, a_to_x = norm(x)
    q, k, v = np.split(a @ w["qkv"], 3, -1)
    scores = q @ k.swapaxes(1, 2) / WIDTH**0.5
    p = softmax(np.where(np.tri(TOKENS, dtype=bool), scores, -np.inf))  # one head; none sees a later token
    y = p @ v
    x = x + y @ w["out"]
    m, m_to_x = norm(x)
    h = np.maximum(m @ w["up"], 0)
    z, z_to_x = norm(x + h @ w["down"])
    probabilities = softmax(z @ w["embedding"].T)
    losses = -np.log(np.take_along_axis(probabilities, targets[..., None], -1)[..., 0].astype(np.float64))

    # The same backwards, down to the embeddings.
    d_logits = (probabilities - np.eye(VOCABULARY, dtype=x.dtype)[targets]) / targets.size
    d_top = z_to_x(d_logits @ w["embedding"])
    d_h = d_top @ w["down"].T * (h > 0)
    d_middle = d_top + m_to_x(d_h @ w["up"].T)
    d_y = d_middle @ w["out"].T
    d_p = d_y @ v.swapaxes(1, 2)
    d_scores = p * (d_p - (d_p * p).sum(-1, keepdims=True)) / WIDTH**0.5
    d_qkv = np.concatenate([d_scores @ k, d_scores.swapaxes(1, 2) @ q, p.swapaxes(1, 2) @ d_y], -1)
    d_x = d_middle + a_to_x(d_qkv @ w["qkv"].T)

    # The gradient by `w` of `left @ w` is the transposed `left`, times that by the product, over all tokens.
    factors = {"embedding": (d_logits, z), "qkv": (a, d_qkv), "out": (y, d_middle), "up": (m, d_h)}
    factors["down"] = h, d_top
    d_w = {name: np.tensordot(left, right, ((0, 1), (0, 1))) for name, (left, right) in factors.items()}
    d_w["position"] = d_x.sum(0)
    np.add.at(d_w["embedding"], ids, d_x)  # beside what it has as the head
    return losses, d_w


socket, job, text = sys.argv[1:]
data = np.frombuffer(Path(text).read_bytes(), np.uint8)
parts = {"train": data[: len(data) * 9 // 10], "evaluate": data[len(data) * 9 // 10 :]}
random = np.random.default_rng(0)
initial = {name: random.normal(0, 0.05, shape).astype(np.float32) for name, shape in SHAPES.items()}
with tiermesh.join(socket, job=job, parameters=initial, fingerprint="gpt-numpy-1") as run:
    for work in run:
        part = parts[work.kind]
        starts = np.random.default_rng(work.seed).integers(0, len(part) - TOKENS, (BATCH, 1))
        windows = part[starts + np.arange(TOKENS + 1)]
        losses, gradients = compute(work.weights, windows[:, :-1], windows[:, 1:])
        if work.kind == "train":
            work.done(losses.mean(), gradients=gradients)
        else:
            work.done(losses.sum(), count=losses.size)
