"""A language model in numpy as a worker: python language_model_numpy.py SOCKET JOB TEXT.

The embeddings of the last 8 bytes enter an MLP, which predicts the next one (Bengio and others, 2003). Its gradients
are written by hand; those of a GPT would be longer than this page.
"""

import sys
from pathlib import Path

import numpy as np

import tiermesh

CONTEXT, WIDTH, HIDDEN, VOCABULARY, BATCH = 8, 16, 128, 256, 64


def initial_weights():
    random = np.random.default_rng(0)
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "hidden.weight": (CONTEXT * WIDTH, HIDDEN),
        "hidden.bias": (HIDDEN,),
        "output.weight": (HIDDEN, VOCABULARY),
    }
    return {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def forward(weights, context):
    x = weights["embedding"][context].reshape(BATCH, -1)
    hidden = np.tanh(x @ weights["hidden.weight"] + weights["hidden.bias"])
    logits = hidden @ weights["output.weight"]
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return x, hidden, exponents / exponents.sum(-1, keepdims=True)


def backward(weights, context, targets, x, hidden, probabilities):
    d_logits = (probabilities - np.eye(VOCABULARY, dtype=np.float32)[targets]) / BATCH
    d_hidden = d_logits @ weights["output.weight"].T * (1 - hidden**2)
    d_x, d_embedding = d_hidden @ weights["hidden.weight"].T, np.zeros_like(weights["embedding"])
    np.add.at(d_embedding, context, d_x.reshape(BATCH, CONTEXT, WIDTH))
    hidden_gradients = {"hidden.weight": x.T @ d_hidden, "hidden.bias": d_hidden.sum(0)}
    return {"embedding": d_embedding, **hidden_gradients, "output.weight": hidden.T @ d_logits}


socket, job, text = sys.argv[1:]
data = np.frombuffer(Path(text).read_bytes(), np.uint8)
parts = {"train": data[: len(data) * 9 // 10], "evaluate": data[len(data) * 9 // 10 :]}
with tiermesh.join(socket, job=job, parameters=initial_weights(), fingerprint="language-model-1") as run:
    for work in run:
        part = parts[work.kind]
        starts = np.random.default_rng(work.seed).integers(0, len(part) - CONTEXT, (BATCH, 1))
        context, targets = part[starts + np.arange(CONTEXT)], part[starts[:, 0] + CONTEXT]
        found = forward(work.weights, context)
        losses = -np.log(found[-1][np.arange(BATCH), targets].astype(np.float64))
        if work.kind == "train":
            work.done(losses.mean(), gradients=backward(work.weights, context, targets, *found))
        else:
            work.done(losses.sum(), count=BATCH)
