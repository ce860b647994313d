"""How pytest-xdist shares the tests out: file by file, in the order of the folders, tests/contract as if it were one.

Files of tests/contract take turns at the mocked boards: side by side, one process would wait for the other.
"""

from __future__ import annotations

from typing import Any

import pytest

ONE_BY_ONE = "tests/contract/"
"""Files in there go to one process."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return ONE_BY_ONE if nodeid.startswith(ONE_BY_ONE) else super()._split_scope(nodeid)

    # xdist begins with the files of most tests, which leaves the longest for the end: they have few.
    config.option.loadscopereorder = False
    return Scheduling(config, log)
