"""Tests leave the cache of their user alone: conversions of up to 64 GiB would push out that person's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from services.corpora.cache import VARIABLE, cache_folder
from services.runtime.launcher import environment_without_options
from tests.support.cluster.daemon import environment


def test_the_cache_of_the_tests_is_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert cache_folder("tokens").is_relative_to(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("given", [environment, environment_without_options])
def test_processes_that_tests_start_have_it_too(given: Callable[[], dict[str, str]]) -> None:
    assert Path(given()[VARIABLE]) == cache_folder("")
