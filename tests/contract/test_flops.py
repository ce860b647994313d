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
from services.config.models import GPT2Config, LlamaConfig, TransformerConfig
from services.config.parameters import model_parts
from services.sizing.flops import count_flops_per_token
from tests.support.contract.lock_step import LockStep
from tests.support.contract.mocked_board import ROOT
from tests.support.contract.steps import MODELS, device_config, make_job, open_configured_mesh
from tests.support.micro_batch import run_micro_batch
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


def count_product_flops(model: TransformerConfig, vocabulary: int) -> int:
    """Return the operations of training on a token in products with matrices, and in those of attention."""
    assert isinstance(model, GPT2Config | LlamaConfig)
    matrices = sum(
        part.copies * prod(each.shape)
        for part in model_parts(model, vocabulary)
        for each in part.shapes.values()
        if len(each.shape) == 2 and part.name not in {"embeddings", "projection"}
    )
    scores = 12 * model.num_blocks * model.embedding_dim * model.max_sequence_length
    return 6 * (matrices + vocabulary * model.embedding_dim) + scores


@pytest.mark.parametrize("name", ["gpt2", "gpt2_bare", "llama", "llama_bare"])
def test_recorded_products_are_those_of_matrices_and_of_attention(name: str, tmp_path: Path) -> None:
    module, device = RecordedEmulator(emulator), device_config("single", (1, 1))
    with open_configured_mesh(module, device) as mesh:
        step = TrainingStep(make_job(name, device, tmp_path), mesh)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        module.reset()
        run_micro_batch(step, 0, 0, np.empty(step.layout.elements, np.float32))
        recorded = count_recorded_flops(module.lines) / step.tokens_per_micro_batch
        vocabulary = step.vocabulary
        step.close()
    # An RMS norm adds up the rows of its gain's gradient by a product.
    assert recorded == pytest.approx(count_product_flops(MODELS[name], vocabulary), rel=0.001)


def load_model(name: str, folder: Path) -> GPT2Config | LlamaConfig:
    """Return a shipped model config."""
    (folder / "text.txt").write_text("to be or not to be " * 5000)
    path, model_path = folder / "job.yaml", ROOT / "configs/model_configs" / f"{name}.yaml"
    path.write_text(
        f"training_config: {{batch_size: 1, data_path: {folder}/text.txt, model_config: {model_path}}}\n"
    )
    model = load_job(path, [])[0].model
    assert isinstance(model, GPT2Config | LlamaConfig)
    return model


@pytest.mark.parametrize(
    ("name", "vocabulary"),
    [
        ("gpt2s", 50257),
        ("gpt2xl", 50257),
        ("nanogpt_char", 65),
        ("nanogpt_memory_eff", 50257),
        ("nanollama3", 50257),
        ("nanollama3_char", 65),
        ("tinyllama", 32000),
        ("llama8b", 128256),
    ],
)
def test_the_formula_is_within_one_percent_of_the_products(
    name: str, vocabulary: int, tmp_path: Path
) -> None:
    """What it counts too much is biases and norms. Tiny models, as in the test above, have relatively many."""
    model = load_model(name, tmp_path)
    formula = count_flops_per_token(model, vocabulary)
    assert formula == pytest.approx(count_product_flops(model, vocabulary), rel=0.01)


def test_embeddings_are_not_counted_and_the_projection_is_tied_or_not(tmp_path: Path) -> None:
    """GPT-2 small has 124,439,808 parameters, 786,432 of them positions (Radford et al., 2019)."""
    model = load_model("gpt2s", tmp_path)
    untied = model.model_copy(update={"weight_tying": False})
    expected = 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024
    assert [count_flops_per_token(each, 50257) for each in (model, untied)] == [expected] * 2
