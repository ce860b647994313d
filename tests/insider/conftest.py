"""Fixtures of the clusters of real processes, which tests/cluster has."""

from tests.cluster.conftest import corpus, gpt_spec, pytest_runtest_makereport, undisturbed

__all__ = ["corpus", "gpt_spec", "pytest_runtest_makereport", "undisturbed"]
