"""Data to train and evaluate on: tokenizers, and batches that follow from (job seed, step, index)."""

from __future__ import annotations

from worker.data.dataset import Batch, Dataset
from worker.data.load import load_tokens
from worker.data.regression import RegressionDataset
from worker.data.tokenizer import Tokenizer, character_tokenizer, load_tokenizer
from worker.data.tokens import TokenDataset

__all__ = [
    "Batch",
    "Dataset",
    "RegressionDataset",
    "TokenDataset",
    "Tokenizer",
    "character_tokenizer",
    "load_tokenizer",
    "load_tokens",
]
