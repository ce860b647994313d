"""Verification: sampled micro-batches are computed by a second worker, and the checksums are compared."""
