"""Fingerprints: facts by name that the bits of a worker's results depend on."""

CODE = "code"
"""Name of the fact that is the hash of the code that computes. A job may change it: workers of other code wait."""
