"""Settings for all tests: the examples that hypothesis draws, and the distribution of tests over processes.

Hypothesis draws the same examples in each run, so a failure comes from the change under test. `make test
HYPOTHESIS=default` draws others. pytest-xdist distributes whole files, the longest first. tests/contract counts as one
file: its files take turns at the mocked boards, so a second process would only wait for the first.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from mesh.axes import Axes
from mesh.device import Mesh, open_mesh
from services.corpora import cache

# No test may depend on the speed of the machine, so none has a deadline for an example or for drawing it.
ANY_SPEED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", ANY_SPEED)
settings.register_profile("same", ANY_SPEED, derandomize=True)
settings.load_profile("same")

# Hypothesis also draws constants of the modules that a process has loaded: they depend on the tests that it ran before.
NO_CONSTANTS = Constants()
constants_of_modules = providers._get_local_constants
providers._get_local_constants = lambda: (
    NO_CONSTANTS if settings.default.derandomize else constants_of_modules()
)

# A shell starts its background jobs with SIGINT ignored, and the processes that tests interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The processes that tests start buffer their output, as a person's do.
os.environ.pop("PYTHONUNBUFFERED", None)

CONTRACT = "tests/contract/"
LONGEST = (
    CONTRACT,
    "tests/simulation/test_simulation.py",
    "tests/simulation/test_split_jobs.py",
    "tests/simulation/test_sharded_jobs.py",
    "tests/simulation/test_several_jobs.py",
    "tests/insider/test_processes.py",
)
"""Files that take minutes. They start first, because a late start would leave the other processes idle."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return CONTRACT if nodeid.startswith(CONTRACT) else super()._split_scope(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            longest = next((unit for unit in LONGEST if unit in self.workqueue), None)
            if longest is not None:
                self.workqueue.move_to_end(longest, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def no_state_is_left() -> Iterator[None]:
    """Check that no process keeps its state in the default folders, where it would meet that of an earlier run."""
    default = Path(".tiermesh").absolute()
    before = set(default.rglob("*"))
    yield
    left = sorted(map(str, set(default.rglob("*")) - before))
    assert not left, "a test started a daemon without --state-dir"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Give the tests, and the processes that they start, a folder of their own for what is kept of token files."""
    os.environ[cache.VARIABLE] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def open_emulator() -> Iterator[Callable[..., Mesh]]:
    """Return a function that opens an emulated mesh and closes the previous one. The test's end closes the last one."""
    with ExitStack() as stack:

        def open_one(
            mesh_shape: tuple[int, int] = (1, 1), dtype: str = "float32", axes: Axes | None = None
        ) -> Mesh:
            stack.close()
            if axes is None:
                axes = Axes() if mesh_shape == (1, 1) else Axes(data=int(mesh_shape[0] == 1))
            return stack.enter_context(open_mesh(mesh_shape, backend="emulator", dtype=dtype, axes=axes))

        yield open_one


@pytest.fixture
def mesh(open_emulator: Callable[..., Mesh]) -> Mesh:
    """Return one emulated device with float32."""
    return open_emulator()
