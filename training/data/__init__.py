"""Training data: tokenizers, and batches that follow from (job seed, step, index)."""

from __future__ import annotations

from training.data.dataset import Batch, Dataset
from training.data.load import load_tokens
from training.data.regression import RegressionDataset
from training.data.tokenizer import Tokenizer, build_character_tokenizer, load_tokenizer
from training.data.tokens import TokenDataset

__all__ = [
    "Batch",
    "Dataset",
    "RegressionDataset",
    "TokenDataset",
    "Tokenizer",
    "build_character_tokenizer",
    "load_tokenizer",
    "load_tokens",
]
