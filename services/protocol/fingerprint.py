"""Fingerprints: facts by name that the bits of a worker's results depend on."""

from __future__ import annotations

from collections.abc import Mapping

CODE = "code"
"""Name of the fact that is the hash of the code that computes. A job may change it: workers of other code wait."""
OWN_CODE = "own code"
"""Beginning of the names of the facts about a user's own model. A job keeps the code of its first build."""


def own_code_of(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """Return the facts of a fingerprint about a user's own model; none for a model of Tiermesh."""
    return {name: value for name, value in fingerprint.items() if name.startswith(OWN_CODE)}
