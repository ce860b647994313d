"""Output and exit codes of `tiermesh check --mesh`."""

from __future__ import annotations

import json
from typing import Any

import pytest

import mesh.link_check
from cli.check import parse_shape
from cli.main import main
from mesh.device import Mesh, open_mesh
from services.errors import Refused

CHECK = ["check", "--mesh", "--backend", "emulator"]


def test_a_mesh_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CHECK, "--mesh-shape", "2x4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mesh [2, 4] on emulator: 8 x emulator (emulator), float32"
    assert lines[1].startswith("memory of each chip: 12.0 GiB, ")
    assert "    1 [4]-[5]-[6]-[7]" in lines
    assert lines[-2].startswith("axis 0 (rows, 2 devices): all-reduce passed, ")
    assert lines[-1].startswith("axis 1 (columns, 4 devices): all-reduce passed, ")


def test_the_result_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CHECK, "--mesh-shape", "1x8", "--json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result["passed"] is True
    assert (result["mesh_shape"], result["devices"]) == ([1, 8], [[0, 1, 2, 3, 4, 5, 6, 7]])
    (axis,) = result["axes"]
    assert (axis["axis"], axis["name"], axis["devices"], axis["passed"]) == (1, "columns", 8, True)


def test_wrong_sums_fail_and_the_mesh_is_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_sum(opened: Mesh, tensor: Any, axis: int) -> Any:
        return tensor

    monkeypatch.setattr(mesh.link_check, "all_reduce", without_sum)
    assert main([*CHECK, "--mesh-shape", "1x8", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["passed"] is False
    assert "FAILED: device 0 at [0, 0] has 1, expected 29" in captured.err
    assert "and 5 more" in captured.err
    assert "axis 1 gives wrong sums" in captured.err.splitlines()[-1]
    open_mesh((1, 1), backend="emulator").close()


def test_one_device_has_no_links(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(CHECK) == 0
    assert "no links to check" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "give --mesh"),
        ([*CHECK, "--mesh-shape", "8"], "--mesh-shape '8'"),
        ([*CHECK, "--mesh-shape", "0x8"], "mesh_shape: [0, 8], expected [rows, columns]"),
    ],
)
def test_wrong_options_are_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err and len(captured.err.splitlines()) == 1


@pytest.mark.parametrize("text", ["1x8", "1,8", "[1, 8]", " 1 x 8 "])
def test_spellings_of_a_shape(text: str) -> None:
    assert parse_shape(text) == (1, 8)
    with pytest.raises(Refused):
        parse_shape(f"{text}x2")
