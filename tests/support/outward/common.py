"""Values and helpers that several sections of the outward contract share."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from services.tensors.layout import Layout

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "outward"
JOBS = ROOT / "configs" / "training_configs"
NOT_PRODUCT = ("tests", "benchmarks")
CHECKSUM_FIELD = 15
TYPES = {value: name[5:].lower() for name, value in vars(FieldDescriptor).items() if name.startswith("TYPE_")}
RULES: dict[str, Any] = {
    "adamw": {"type": "adamw", "beta2": 0.95},
    "sgd": {"type": "sgd"},
    "sgd with momentum": {"type": "sgd", "momentum": 0.9, "dampening": 0.1},
    "sgd with nesterov": {"type": "sgd", "momentum": 0.9, "nesterov": True},
}
LAYOUT = Layout.build(
    [
        ("embedding", (96, 80), True, "model.embedding.weight", False),
        ("projection", (80, 1000), True, "model.projection.weight", True),
        ("bias", (1000,), False, "model.projection.bias", False),
    ]
)


def digest(data: bytes | memoryview | np.ndarray[Any, Any]) -> str:
    return hashlib.sha256(data.tobytes() if isinstance(data, np.ndarray) else data).hexdigest()


def mask_numbers(text: str) -> str:
    """Replace the numbers of a log line, which differ from run to run."""
    return re.sub(r"\d+(\.\d+)?(e[+-]?\d+)?", "<number>", text)


def draw_numbers(count: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return pseudo-random float32 of many magnitudes, made by exact arithmetic alone."""
    with np.errstate(over="ignore"):
        bits = (np.arange(count, dtype=np.uint64) + np.uint64(seed << 40)) * np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mantissa = ((bits >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32)
    return np.ldexp(mantissa, -23 - (bits & np.uint64(15)).astype(np.int32)).astype(np.float32)
