"""`tiermesh check`: test the mesh of this host."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cli.output import Output
from services.errors import Failed, Refused
from services.runtime.process import limit_blas_to_one_thread

MAX_SHOWN = 3
"""Number of wrong devices that are named per axis; the others are counted."""


def parse_shape(text: str) -> tuple[int, int]:
    """Return rows and columns of a text like `1x8`, `1,8` or `[1, 8]`.

    Raises:
        Refused: the text has another form.
    """
    found = re.fullmatch(r"\[?\s*(\d+)\s*[x,]\s*(\d+)\s*\]?", text.strip())
    if found is None:
        raise Refused(f"--mesh-shape {text!r}: expected rows and columns, for example 1x8")
    return int(found[1]), int(found[2])


def run(mesh_shape: str | None, backend: str, output: Output) -> None:
    """Open the mesh, run an all-reduce along each axis, and print the mesh and the outcome.

    Args:
        mesh_shape: rows and columns; None for all devices of this host, as the descriptor or ttnn arranges them.
        backend: value as in `device_config.backend`.
        output: where the result goes.

    Raises:
        Refused: this host can't have such a mesh.
        Failed: the mesh can't be opened, or a sum is wrong.
    """
    limit_blas_to_one_thread()
    from mesh.device import detect_mesh_shape
    from mesh.fingerprint import find_board_type
    from mesh.link_check import AXIS_NAMES, check_axis, draw_mesh, open_mesh_for_check, read_device_ids
    from mesh.memory import read_chip_memory

    shape = parse_shape(mesh_shape) if mesh_shape else detect_mesh_shape(backend)
    with open_mesh_for_check(shape, backend) as mesh:
        ids, memory = read_device_ids(mesh), read_chip_memory(mesh)
        dtype = str(mesh.dtype).rpartition(".")[2].lower()
        output.say(
            f"mesh {list(shape)} on {mesh.backend}: {mesh.chips} x {mesh.arch} ({find_board_type(mesh)}), {dtype}"
        )
        output.say(
            f"memory of each chip: {memory.total_bytes / 2**30:.1f} GiB, "
            f"{memory.allocated_bytes / 2**20:.1f} MiB in use"
        )
        for line in draw_mesh(ids):
            output.say(f"    {line}")
        checks = [check_axis(mesh, axis) for axis, size in enumerate(shape) if size > 1]
        for check in checks:
            output.say(
                f"axis {check.axis} ({AXIS_NAMES[check.axis]}, {check.devices} devices): "
                f"{describe_outcome(check.seconds, check.wrong_sums, len(check.wrong_sums))}"
            )
        if not checks:
            output.say("mesh [1, 1]: no links to check, since there is only one device")
        passed = all(check.passed for check in checks)
        output.result(
            {
                "passed": passed,
                "mesh_shape": list(shape),
                "backend": mesh.backend,
                "arch": mesh.arch,
                "board": find_board_type(mesh),
                "dtype": dtype,
                "devices": ids,
                "memory_bytes": memory.total_bytes,
                "allocated_bytes": memory.allocated_bytes,
                "axes": [
                    {
                        "axis": check.axis,
                        "name": AXIS_NAMES[check.axis],
                        "devices": check.devices,
                        "passed": check.passed,
                        "seconds": check.seconds,
                        "wrong": list(check.wrong_sums),
                    }
                    for check in checks
                ],
            }
        )
    if not passed:
        axes = " and ".join(str(check.axis) for check in checks if not check.passed)
        raise Failed(
            f"mesh {list(shape)}: the all-reduce along axis {axes} gives wrong sums; try in this order: "
            "reset the devices "
            "with `tt-smi -r`, because a killed run can leave the links in a bad state; set up the links with "
            "`tt-topology -l mesh`; make sure that the devices are not mocked, because mocked devices compute nothing"
        )


def describe_outcome(seconds: float, wrong_sums: Sequence[str], wrong_count: int) -> str:
    """Return the outcome of an all-reduce along one axis, as text for people.

    Args:
        seconds: its duration.
        wrong_sums: one text per device whose sum is wrong, of the first few or of all.
        wrong_count: number of devices whose sum is wrong.
    """
    if not wrong_count:
        return f"all-reduce passed, {seconds * 1e3:.1f} ms"
    more = wrong_count - MAX_SHOWN
    return (
        "all-reduce FAILED: " + "; ".join(wrong_sums[:MAX_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    )
