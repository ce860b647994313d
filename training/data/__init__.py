"""Training data: tokenizers, and batches that follow from (job seed, step, index)."""
