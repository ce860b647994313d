"""FLOPs per token, against the matrix products that the contract's recorder sees in a micro-batch.

`test_cells.py` checks that real ttnn and the emulator are called alike, so the emulator's calls are counted here.
"""

from __future__ import annotations

import re
from math import prod
from pathlib import Path

import numpy as np
import pytest

import mesh.emulator as emulator
from services.config.load import load_job
from services.config.models import GPT2Config, LlamaConfig
from services.config.parameters import count_parameters
from services.sizing.flops import count_flops_per_token, count_product_flops_per_token
from tests.support.contract.lock_step import LockStep
from tests.support.contract.mocked_board import ROOT
from tests.support.contract.steps import MODELS, device_config, make_job, open_configured_mesh
from training.step import TrainingStep

_PRODUCT = re.compile(r"(?:matmul|linear)\(\[([\d,]+)\][^-]*-> \[([\d,]+)\]")


class RecordedEmulator(LockStep):
    """Recorder of calls on the emulator alone."""

    __name__ = "mesh.emulator"


def count_recorded_flops(lines: list[str]) -> int:
    """Return the operations of all matrix products: 2 for each element of a result and of the dimension summed over."""
    total = 0
    for line in lines:
        found = _PRODUCT.match(line)
        if found:
            left, result = ([int(size) for size in shape.split(",")] for shape in found.groups())
            total += 2 * prod(result) * left[-2 if "transpose_a=True" in line else -1]
    return total


@pytest.mark.parametrize("name", ["gpt2", "gpt2_bare", "llama", "llama_bare"])
def test_products_of_a_micro_batch_are_those_of_the_formula(name: str, tmp_path: Path) -> None:
    module, device = RecordedEmulator(emulator), device_config("single", (1, 1))
    with open_configured_mesh(module, device) as mesh:
        step = TrainingStep(make_job(name, device, tmp_path), mesh)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        module.reset()
        step.micro_batch(0, 0, np.empty(step.layout.elements, np.float32), lambda offset: None)
        recorded = count_recorded_flops(module.lines) / step.tokens_per_micro_batch
        vocabulary = step.layout.entries[0].shape[0]
        step.close()
    expected = count_product_flops_per_token(MODELS[name], vocabulary)
    # An RMS norm adds up the rows of its gain's gradient by a product.
    assert recorded == pytest.approx(expected, rel=0.001)


SHIPPED = {
    "gpt2s": (50257, 1.007),
    "gpt2xl": (50257, 1.039),
    "nanogpt_char": (65, 1.013),
    "nanollama3_char": (65, 1.003),
    "tinyllama": (32000, 1.054),
    "llama8b": (128256, 1.065),
}
"""Tokens of a shipped model config, and what the formula counts over what its matrix products take.

It counts a large untied embedding, which is only looked up, and trained positions, biases and norms.
"""


@pytest.mark.parametrize(("name", "vocabulary", "ratio"), [(name, *case) for name, case in SHIPPED.items()])
def test_where_the_formula_holds(name: str, vocabulary: int, ratio: float, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 5000)
    path = tmp_path / "job.yaml"
    model_path = ROOT / "configs/model_configs" / f"{name}.yaml"
    path.write_text(
        f"training_config: {{batch_size: 1, data_path: {tmp_path}/text.txt, model_config: {model_path}}}\n"
    )
    model = load_job(path, [])[0].model
    assert isinstance(model, GPT2Config | LlamaConfig)
    formula = count_flops_per_token(model, count_parameters(model, vocabulary) or 0)
    products = count_product_flops_per_token(model, vocabulary)
    assert formula is not None and products is not None
    assert formula / products == pytest.approx(ratio, abs=0.001)
