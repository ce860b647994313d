"""Links and training steps on a real mesh or a simulator, compared with the emulator.

`make test-hardware` runs these where a device or TT_METAL_SIMULATOR is present.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from mesh.backend import has_device
from tests.support.contract.steps import STRATEGIES
from tests.support.hardware.outcomes import TRAINED, Shape, find_differences, fits, load, run_step

Run = Callable[..., "subprocess.CompletedProcess[str]"]

pytestmark = [
    pytest.mark.hardware,
    pytest.mark.skipif(find_spec("ttnn") is None, reason="ttnn has no wheel for this Python"),
    pytest.mark.skipif(
        not has_device(), reason="no device: neither /dev/tenstorrent nor TT_METAL_SIMULATOR is present"
    ),
]

MESHES: list[Shape] = [(1, 1), (1, 2), (2, 4), (1, 8), (8, 1), (8, 4), (1, 32)]


@pytest.fixture(scope="session")
def devices(on_device: Run) -> int:
    """Return the number of devices of this host."""
    done = on_device("-m", "cli.main", "check", "--mesh", "--backend", "ttnn", "--json")
    result = json.loads(done.stdout.splitlines()[-1])
    assert "devices" in result, result
    return sum(map(len, result["devices"]))


@pytest.fixture(scope="module")
def outcomes(
    on_device: Run, devices: int, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Shape], Path]:
    """Return a function that gives the folder with the outcomes of a mesh. Each mesh runs once."""
    folders: dict[Shape, Path] = {}

    def run_mesh(shape: Shape) -> Path:
        if shape != (1, 1) and shape[0] * shape[1] != devices:
            pytest.skip(f"this host has {devices} devices; links run over all of them")
        if shape not in folders:
            folders[shape] = tmp_path_factory.mktemp("mesh")
            done = on_device(
                "-m", "tests.support.hardware.run_cells", str(folders[shape]), f"{shape[0]}x{shape[1]}"
            )
            assert done.returncode == 0, done.stderr
        return folders[shape]

    return run_mesh


@pytest.mark.parametrize("shape", MESHES, ids=str)
def test_the_link_check_passes(shape: Shape, devices: int, on_device: Run) -> None:
    if shape[0] * shape[1] != devices:
        pytest.skip(f"this host has {devices} devices; links run over all of them")
    mesh_shape = f"{shape[0]}x{shape[1]}"
    done = on_device("-m", "cli.main", "check", "--mesh", "--backend", "ttnn", "--mesh-shape", mesh_shape)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("model", "strategy", "shape"),
    [
        pytest.param(model, strategy, shape, id=f"{model}-{strategy}-{shape[0]}x{shape[1]}")
        for shape in MESHES
        for strategy in STRATEGIES
        if fits(strategy, shape)
        for model in TRAINED
    ],
)
def test_a_step_equals_that_of_the_emulator(
    model: str, strategy: str, shape: Shape, outcomes: Callable[[Shape], Path], tmp_path: Path
) -> None:
    folder = outcomes(shape)
    failed = folder / f"{model}-{strategy}.error"
    assert not failed.exists(), failed.read_text()
    expected = run_step(model, strategy, shape, backend="emulator", dtype="bfloat16", folder=tmp_path)
    assert find_differences(load(folder / f"{model}-{strategy}.npz"), expected) == []
